"""TCP ports of this machine: which process holds one, and the range that the system uses for outgoing connections."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_RANGE = range(32768, 61000)
"""Linux's default range of ports for outgoing connections."""


def ephemeral_ports() -> range:
    """Returns the ports that the system may use for an outgoing connection at any moment; a server should not use
    them."""
    try:
        low, high = RANGE_FILE.read_text().split()
        return range(int(low), int(high) + 1)
    except (OSError, ValueError):
        return USUAL_RANGE


def port_owner(port: int, besides: int = 0) -> str | None:
    """Returns the process that holds a TCP port, for example "python3 (pid 71) listens on it"; None if none does, or if
    the system hides it.

    `besides` is the pid of a process to ignore.
    """
    import psutil

    held = None
    try:
        for connection in psutil.net_connections("tcp"):
            if not connection.laddr or connection.laddr.port != port or connection.pid in (None, besides):
                continue
            name = f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            if connection.status == psutil.CONN_LISTEN:
                return f"{name} listens on it"
            if connection.raddr:
                held = f"{name} has it as its end of a connection to {connection.raddr.ip}:{connection.raddr.port}"
    except psutil.Error:
        return None
    return held


def why_taken(port: int, error: int, owner: str | None) -> str:
    """Returns the second line of an error about a port that cannot be bound."""
    why = owner or f"another process holds it ({os.strerror(error)})"
    ephemeral = ephemeral_ports()
    if port in ephemeral:
        why += (
            f"; the system takes ports from {ephemeral[0]} to {ephemeral[-1]} for outgoing connections, "
            "so a server's should lie outside"
        )
    return why


def clash(error: OSError, ports: Mapping[str, int]) -> str | None:
    """Returns three lines for a node that found one of its `ports` (name -> port) taken; None if it failed for another
    reason."""
    if error.errno != errno.EADDRINUSE:
        return None
    for name, port in ports.items():
        # The process that held the port may have ended by now, but an error of asyncio names the address.
        owner = port_owner(port, besides=os.getpid())
        if owner or f", {port})" in str(error):
            return (
                f"The node cannot start: port {port} ({name}) is in use.\n{why_taken(port, errno.EADDRINUSE, owner)}\n"
                f"End that process, or change {name} in the node's raftmq.toml and in that of every other node."
            )
    return None
