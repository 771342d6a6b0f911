"""Processes and ports on this machine: starts a node, recognises it later, ends it, and finds out who holds a port.

A process counts as a node, or as one of the registry, only if its command line runs the node's or the registry's module
with exactly its configuration file; so a pid that the system has since given to another program is never signalled.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.config.local_layout import NodeName, NodeRecord, RegistryRecord, node_object
from cluster.runtime.tcp_ports import ephemeral_ports, port_owner, why_taken
from raftmq.local.waiting import until
from raftmq_wire.errors import ExitCode, LocalError, without_label

if TYPE_CHECKING:
    import psutil

Started = NodeRecord | RegistryRecord
"""The record of a process that is started here: a node, or one of the registry."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Nodes that this very process started, by pid: it must wait for them when they end, or they stay as zombies."""

atexit.register(lambda: [child.poll() for child in _children.values()])
"""Reaps nodes that ended without being asked; otherwise the interpreter would warn that they still run."""

_BLOCK = 16
_reserved: list[int] = []
"""Descriptors of abstract socket names. Each name reserves a block of ports for this process, and disappears with
it."""

_PLACES = ((15000, 32000), (2000, 9000), (61000, 65500))
PORTS_WANTED = 1000
NAMELESS_PORT_S = 10.0
"""Time in seconds to wait for a port whose owner cannot be found, such as a killed process whose disk write still
runs."""


def start_node(node: Started) -> int:
    """Starts the process in its own session, so that Ctrl-C here does not reach it; returns its pid.

    `-P` keeps the working directory off the import path: a user's own cluster.py must not be started instead.
    """
    command = [sys.executable, "-P", "-m", node.module, "--config", str(node.config_path), "--log-file", node.log]
    with Path(node.log).open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, close_fds=True
        )
    _children[child.pid] = child
    return child.pid


def find_process(node: Started) -> psutil.Process | None:
    """Returns the node's running process, or None."""
    import psutil

    if node.pid is None:
        return None
    child = _children.get(node.pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        process = psutil.Process(node.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if child is not None:
            return process  # not waited for yet, so the pid cannot be another's; its command line may not be there yet
        command = process.cmdline()
    except psutil.Error:
        return None
    return process if node.module in command and str(node.config_path) in command else None


def is_running(node: Started) -> bool:
    """Returns True if the process that cluster.json names still runs this node."""
    return find_process(node) is not None


def exit_code(pid: int) -> int | None:
    """Returns the exit code of a node that this process started; None if it runs or another process started it."""
    return _children[pid].poll() if pid in _children else None


def kill_node(node: Started) -> bool:
    """Kills the node (SIGKILL) and waits until the process has ended. Returns False if it did not run."""
    process = find_process(node)
    if process is None:
        return False
    _signal(process, signal.SIGKILL)
    _wait_gone([node], 10.0)
    return True


def stop_nodes(nodes: Iterable[Started], timeout_s: float = 10.0) -> list[NodeName]:
    """Stops the running nodes with SIGTERM, and kills those that still run after `timeout_s` with SIGKILL. Returns the
    names of those that had to be killed."""
    running = [(node, process) for node in nodes if (process := find_process(node)) is not None]
    for _, process in running:
        _signal(process, signal.SIGTERM)
    stubborn = _wait_gone([node for node, _ in running], timeout_s)
    for node in stubborn:
        if (process := find_process(node)) is not None:
            _signal(process, signal.SIGKILL)
    _wait_gone(stubborn, timeout_s)
    return [node.name for node in stubborn]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    import psutil

    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise LocalError(
            f"process {process.pid} cannot be stopped",
            "it belongs to another user",
            f"sudo kill {process.pid}",
            ExitCode.REFUSED,
        ) from None


def _wait_gone(nodes: list[Started], timeout_s: float) -> list[Started]:
    """Waits for the nodes' processes to end; returns those that still run after `timeout_s`."""
    until(lambda: not any(map(is_running, nodes)), timeout_s, 0.02)
    return [node for node in nodes if is_running(node)]


def check_ports(
    nodes: Iterable[Started],
    owner: Callable[[int], str | None] = port_owner,
    nameless_s: float = NAMELESS_PORT_S,
) -> None:
    """Raises LocalError for the first port that another process holds; the error names the process if `owner` finds it.
    If no owner can be found, waits for the port, at most `nameless_s` seconds."""
    for node in nodes:
        for purpose, port in node.ports.items():
            if taken := _taken(port, owner, nameless_s):
                error, who = taken
                raise LocalError(
                    f"port {port} ({purpose} of {node_object(*node.key)}) is in use",
                    why_taken(port, error, who),
                    "raftmq up --base-port 20000    (other ports; or end that process)",
                    ExitCode.REFUSED,
                )


def _taken(port: int, owner: Callable[[int], str | None], nameless_s: float) -> tuple[int, str | None] | None:
    """Returns (errno, owner) of a port that cannot be bound; None if it can be bound.

    Waits up to `nameless_s` seconds for a port without a known owner: a process that is killed in the middle of an
    fdatasync keeps its sockets until the disk answers, but has no name any more.
    """
    deadline = time.monotonic() + nameless_s
    while error := _bind_error(port):
        who = owner(port)
        if who or time.monotonic() >= deadline:
            return error, who
        time.sleep(0.05)
    return None


def _bind_error(port: int) -> int | None:
    """Returns the errno of binding the port as a node will, or None. With SO_REUSEADDR, a port in TIME_WAIT is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as error:
            return error.errno
    return None


def is_free(port: int) -> bool:
    """Returns True if a node could listen on the port now."""
    return _bind_error(port) is None


def free_base_port(count: int, seed: int | None = None) -> int:
    """Returns a base port with `count` free ports in a row, away from RocketMQ's usual ones and from ephemeral ports.

    The ports stay reserved for this process until it ends: no other process that calls this function gets any of them,
    even while nothing listens. Another program may bind one before it is used; `check_ports` reports that. Raises
    LocalError if none is found.
    """
    import random

    rng = random.Random(seed)
    low, high = _free_range()
    for _ in range(200):
        base = rng.randrange(low // _BLOCK + 1, (high - count) // _BLOCK) * _BLOCK
        if all(_bind_error(port) is None for port in range(base, base + count)) and _reserve(base, count):
            return base
    raise LocalError(
        f"no {count} consecutive free ports were found",
        f"200 ranges between {low} and {high} were tried",
        "raftmq up --base-port P    (with a P of your choice)",
        ExitCode.REFUSED,
    )


def _reserve(base: int, count: int) -> bool:
    """Reserves the blocks that contain these ports; returns False if a RaftMQ command of this machine has one of them.

    The reservation is needed because seconds pass between the choice of a port and its first listener, and during the
    restart of a node. A reservation is a name in Linux's abstract namespace, which is no file, and is released when its
    process ends.
    """
    taken = []
    for block in range(base // _BLOCK, (base + count - 1) // _BLOCK + 1):
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        taken.append(name)
        try:
            name.bind(f"\0raftmq-ports-{block * _BLOCK}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for other in taken:
                    other.close()
                return False
            name.close()  # a system without abstract sockets: go on without a reservation
    _reserved.extend(name.detach() for name in taken)
    return True


def _free_range() -> tuple[int, int]:
    """Returns the range in which to look for free ports: the first range of _PLACES without ephemeral ports, or the
    part of a range below them if it has PORTS_WANTED ports. If there is none, returns the first range."""
    taken = ephemeral_ports()
    for low, high in _PLACES:
        if taken.stop <= low or high <= taken.start:
            return low, high
        if taken.start - low >= PORTS_WANTED:
            return low, taken.start
    return _PLACES[0]


def log_tail(node: Started, lines: int = 8) -> list[str]:
    """Returns the last lines of the node's log, including lines of the previous file if a new one has just begun."""
    found = _tail(Path(node.log))
    if len(found) < lines:
        found = _tail(Path(f"{node.log}.1")) + found
    return found[-lines:]


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            return file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def ended(record: Started) -> LocalError:
    """Returns the error for a node, or a process of the registry, that has ended. If it refused to start, the error has
    its three lines with the reason (`cluster.node.__main__`); for any other end, the end of its log."""
    words = [line for line in log_tail(record, 12) if line.strip()]
    code = exit_code(record.pid) if record.pid is not None else None
    who = node_object(*record.key)
    if code in (ExitCode.USAGE, ExitCode.REFUSED) and len(words) >= 3:
        what, why, fix = map(without_label, words[-3:])
        return LocalError(f"{who}: {what}", why, fix, ExitCode(code))
    return LocalError(
        f"{who} exited during its start" + (f" (exit code {code})" if code is not None else ""),
        "; ".join(words[-4:]) if words else "it printed nothing",
        f"raftmq logs {record.name}",
    )
