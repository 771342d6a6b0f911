"""Makes the directory and the configuration of a node that will join a cluster, from a member's answer to `GET
/v1/members/join`. This module sends nothing, and changes no existing file."""

from __future__ import annotations

import base64
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from cluster.config.config import Config
from cluster.config.local_layout import node_object
from cluster.config.node_sections import PeerNode
from cluster.config.source import toml_value
from raftlog.errors import IdentityError, StorageError
from raftlog.frame import genesis_entry
from raftlog.storage.files import genesis as geneses
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.identity import Ancestor, Identity
from raftlog.storage.node_dir import create_joining_dir
from raftlog.types import NodeId
from raftmq_wire.errors import ExitCode, LocalError


def make_directory(fs: FileSystem, directory: Path, node: int, join: dict[str, Any], now_ms: int) -> Identity:
    """Makes the directory if it does not exist, and returns its identity. A directory that an interrupted attempt made
    for this node is used unchanged.

    Raises LocalError if the directory belongs to another node or cluster, or holds other files.
    """
    known = check_directory(fs, directory, node, join)
    if known is not None:
        return known
    origin = tuple(Ancestor(UUID(each["cluster_id"]), each["last_index"]) for each in join["ancestors"])
    identity = Identity(UUID(join["cluster_id"]), join["group"], NodeId(node), uuid.uuid4(), now_ms, origin)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        create_joining_dir(fs, directory, identity, _genesis(join))
    except (OSError, StorageError) as error:
        raise directory_error(error, directory) from error
    return identity


def check_directory(fs: FileSystem, directory: Path, node: int, join: dict[str, Any]) -> Identity | None:
    """Returns the identity of this very node if an earlier attempt has made the directory; None if it is still to be
    made. Changes nothing. Raises LocalError if the directory belongs to another node, or the id is taken."""
    if _is_used(fs, directory):
        return _known_directory(fs, directory, node, join)
    if node in join["taken_ids"]:
        raise LocalError(
            f"{node_object(join['group'], node)} is, or was, another node's id",
            f"ids are not used twice; taken are {', '.join(map(str, join['taken_ids']))}",
            f"use id {join['next_id']}    (node.id in its configuration, or no --id at all)",
            ExitCode.REFUSED,
        )
    return None


def clear_half_made(fs: FileSystem, directory: Path) -> None:
    """Removes a directory whose creation was interrupted. The caller must know that its creation began here, and that
    its node is no member: the node has then acknowledged nothing."""
    if _is_used(fs, directory) and not fs.exists(directory / layout.IDENTITY):
        shutil.rmtree(directory)


def _is_used(fs: FileSystem, directory: Path) -> bool:
    return fs.exists(directory) and any(name != layout.LOCK for name in fs.listdir(directory))


def _known_directory(fs: FileSystem, directory: Path, node: int, join: dict[str, Any]) -> Identity:
    if not fs.exists(directory / layout.IDENTITY):
        raise LocalError(
            f"{directory} is not empty and no node's",
            "something else lies there, or its creation was interrupted; then nothing in it was ever acknowledged",
            f"mv {directory} {directory}.old    (then repeat the command)",
            ExitCode.REFUSED,
        )
    try:
        found = identities.load(fs, directory)
    except (OSError, StorageError) as error:
        raise directory_error(error, directory) from error
    if str(found.cluster_uuid) != join["cluster_id"]:
        raise LocalError(
            f"{directory} belongs to another cluster",
            f"it is of cluster {found.cluster_uuid}, and {join['cluster']} is cluster {join['cluster_id']}; its log "
            "would be taken for that of this one",
            f"mv {directory} {directory}.old    (or another node.data_dir; then repeat the command)",
            ExitCode.REFUSED,
        )
    if found.node_id != node:
        known, fresh = node_object(found.group_id, found.node_id), node_object(join["group"], node)
        raise LocalError(
            f"{directory} is used: it is {known}'s",
            f"a data directory belongs to one node for ever, and the new one is to be {fresh}",
            f"mv {directory} {directory}.old    (or another node.data_dir; then repeat the command)",
            ExitCode.REFUSED,
        )
    return found


def _genesis(join: dict[str, Any]) -> Genesis:
    return geneses.decode(genesis_entry(base64.b64decode(join["genesis"]), timestamp_ms=0, group_id=join["group"]))


def add_request(config: Config, identity: Identity, *, auto_promote: bool) -> dict[str, Any]:
    """Returns the body of `POST /v1/members` for this node."""
    own = config.peer_of(config.node.id)
    return {
        "id": config.node.id,
        "cluster_id": str(identity.cluster_uuid),
        "uuid": str(identity.node_uuid),
        "host": own.host,
        "port": own.port,
        "admin": own.admin,
        "listeners": own.listeners,
        "auto_promote": auto_promote,
    }


def peer_tables(peers: Sequence[dict[str, Any]], known: Sequence[PeerNode]) -> str:
    """Returns [[peers]] tables, as TOML text, for the members that the configuration lacks; "" if it has all.
    Members without a known host are left out."""
    ids = {peer.id for peer in known}
    blocks = []
    for peer in peers:
        if peer["id"] in ids or not peer["host"]:
            continue
        rows = [f"{name} = {toml_value(peer[name])}" for name in ("id", "host", "port", "admin", "listeners")]
        blocks.append("\n".join(["[[peers]]", *rows]))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def directory_error(error: Exception, directory: Path) -> LocalError:
    """Returns the LocalError, for people, for a data directory that cannot be made or read. An identity error already
    has three lines, which are kept."""
    lines = str(error).split("\n")
    if isinstance(error, IdentityError) and len(lines) >= 3:
        return LocalError(lines[0], lines[1], lines[2], ExitCode.REFUSED)
    if isinstance(error, PermissionError):
        return _not_ours(directory)
    return LocalError(
        f"{directory} cannot be used", str(error), f"ls -ld {directory}    (owner, space, read-only?)", ExitCode.FAILED
    )


def _not_ours(directory: Path) -> LocalError:
    """Returns the error for a directory that this user may not access, such as a volume of root."""
    there = next(path for path in (directory, *directory.parents) if _can_be_seen(path))
    owner, user, group = there.stat().st_uid, os.getuid(), os.getgid()
    return LocalError(
        f"{directory} cannot be used",
        f"{there} belongs to uid {owner}; the process runs as uid {user} and gid {group}, and may not use it",
        f"chown -R {user}:{group} {there}    (as root; if it is a volume, in a container with --user 0 that mounts it)",
        ExitCode.FAILED,
    )


def _can_be_seen(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False
