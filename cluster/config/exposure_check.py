"""Finds out if unauthorised users can reach a node: over ports that are bound to every address, or in a data directory
that other users may enter.

Neither prevents a node from starting. In a container, a node binds every address; and an older release made folders
that others could enter.
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
    """A warning that other users may enter the data directory."""

    says: str
    command: str
    """The chmod command that denies them access."""


def open_ports(config: Config) -> str:
    """Returns a warning that names the ports that are bound to every address, and two ways to protect them; "" if there
    are none."""
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
    """Returns "name address:port" for each port for clients, and that of the HTTP API, that is not bound to loopback
    only."""
    ports = {each.name: (each.bind, each.port) for each in config.listeners}
    ports["admin"] = (config.admin.bind, config.admin.port)
    return [f"{name} {join_address(*at)}" for name, at in ports.items() if not _is_loopback(at[0])]


def _is_loopback(bind: str) -> bool:
    try:
        return ip_address(bind).is_loopback
    except ValueError:  # no IP address but a host name
        return bind.lower() == "localhost"


def open_folder(data_dir: Path, root: Path = Path("/")) -> OpenFolder | None:
    """Returns a warning if other users may enter the data directory, else None. They may if its mode and those of all
    folders above it allow that. Rights of the group are ignored, because an administrator decides who is in it. Folders
    above `root` are not checked."""
    data_dir = data_dir.absolute()
    try:
        above = all(each.stat().st_mode & stat.S_IXOTH for each in data_dir.parents if each.is_relative_to(root))
        if not above or not data_dir.stat().st_mode & stat.S_IRWXO:
            return None
    except OSError:
        return None  # the directory was not made yet
    ours = local_root(str(data_dir)) or data_dir
    command = f"chmod 700 {shlex.quote(str(ours))}"
    return OpenFolder(
        f"other users of this machine can enter {data_dir}, which contains all messages: {command}", command
    )


def _is_everywhere(bind: str) -> bool:
    try:
        return ip_address(bind).is_unspecified
    except ValueError:  # no IP address but a host name
        return False
