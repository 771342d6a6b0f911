"""Finds the parts of a node that unauthorised users can reach: ports on every address, and a data directory that other
users may enter.

Neither keeps a node from starting: in a container a node binds every address, and an older release made the folders
accessible to others.
"""

from __future__ import annotations

import shlex
import stat
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cluster.config.address import join_address
from cluster.config.config import Config
from cluster.config.local_layout import local_root, node_object


class OpenFolder(NamedTuple):
    """The finding of a data directory that other users may enter."""

    says: str
    command: str
    """The chmod command that closes the directory."""


def open_ports(config: Config) -> str:
    """Returns a warning that names the ports that accept connections on every address, and the two ways out; "" if none
    does."""
    heartbeat, port = config.peer.heartbeat or ("", 0)
    peer = {"peer": (config.peer.bind, config.peer.port), "heartbeat": (heartbeat, port)}
    unguarded = {each.name: (each.bind, each.port) for each in config.listeners}
    unguarded["admin"] = (config.admin.bind, config.admin.port)
    lacking = "access control" if any(_is_everywhere(bind) for bind, _ in unguarded.values()) else "encryption"
    found = [f"{name} {join_address(*at)}" for name, at in (unguarded | peer).items() if _is_everywhere(at[0])]
    if not found:
        return ""
    own = node_object(config.cluster.group, config.node.id)
    return (
        f"{own} listens on every address of its machine ({', '.join(found)}), without {lacking}: bind "
        "127.0.0.1 or a private address, or put these ports behind a firewall (see the page "
        '"Security: users and rules" of the docs)'
    )


def ports_beyond(config: Config) -> list[str]:
    """Returns the ports for clients and the HTTP API that other machines may reach (any address but loopback), as "name
    address:port"."""
    ports = {each.name: (each.bind, each.port) for each in config.listeners}
    ports["admin"] = (config.admin.bind, config.admin.port)
    return [f"{name} {join_address(*at)}" for name, at in ports.items() if not _is_loopback(at[0])]


def _is_loopback(bind: str) -> bool:
    try:
        return ip_address(bind).is_loopback
    except ValueError:  # a host name
        return bind.lower() == "localhost"


def open_folder(data_dir: Path, root: Path = Path("/")) -> OpenFolder | None:
    """Returns a finding if other users may enter the data directory: its own mode and that of each folder above allow
    it.

    Rights of a group do not count: an administrator decides who is in it. `root`: folders above it are not looked at.
    """
    data_dir = data_dir.absolute()
    try:
        above = all(each.stat().st_mode & stat.S_IXOTH for each in data_dir.parents if each.is_relative_to(root))
        if not above or not data_dir.stat().st_mode & stat.S_IRWXO:
            return None
    except OSError:
        return None  # not there yet
    ours = local_root(str(data_dir)) or data_dir
    command = f"chmod 700 {shlex.quote(str(ours))}"
    return OpenFolder(
        f"other users of this machine can enter {data_dir}, which contains all messages: {command}", command
    )


def _is_everywhere(bind: str) -> bool:
    try:
        return ip_address(bind).is_unspecified
    except ValueError:  # a host name
        return False
