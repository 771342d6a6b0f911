"""Makes the data directories of a new cluster: one cluster uuid and secret, a uuid for each node, the same GENESIS.

It makes all directories or none. An empty directory beside filled ones is a lost disk, not a new member: a node that
starts empty under a known id would vote again without remembering its votes.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from cluster.config.config import Config
from cluster.config.exposure_check import ports_beyond
from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord, has_no_data, has_no_identity
from cluster.members.joining import directory_error
from cluster.peer.secret_files import complete, give, keys_of_new
from raftlog.errors import StorageError
from raftlog.storage.files import identity as identities
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Expected, Identity
from raftlog.storage.node_dir import create_node_dir
from raftmq.local.access_files import make_access_files
from raftmq.local.made_mark import check_allowed, check_unmade, keep_mark, mark_of_secret, write_mark
from raftmq_wire.errors import ExitCode, LocalError


def refuse_open(config_paths: Sequence[Path], env: Mapping[str, str] | None = None) -> None:
    """Raises LocalError for a new cluster that other machines could reach and use without a user. Does nothing if a
    directory has content: an existing cluster may start, and reports a finding."""
    configs = [load(path, env) for path in config_paths]
    if not all(is_empty(Path(config.node.data_dir)) for config in configs):
        return
    for config in configs:
        ports = ports_beyond(config)
        if ports and not (config.auth.key_file and config.auth.first_user_file):
            raise LocalError(
                f"node {config.node.id} would be open to other machines without a user",
                f"{', '.join(ports)} is not loopback, and auth.key_file and auth.first_user_file name no first user",
                "bind 127.0.0.1, or write both keys (raftmq config explain auth.key_file), or repeat with --insecure",
                ExitCode.USAGE,
            )


class Created(NamedTuple):
    """The result of `create_data_dirs`: the uuid of the cluster, and whether this call made it."""

    created: bool
    cluster_uuid: UUID
    lost: tuple[int, ...] = ()
    """Nodes whose directories were lost although the cluster exists: they are empty, or no node's identity is there."""


def create_data_dirs(
    config_paths: Sequence[Path],
    env: Mapping[str, str] | None = None,
    *,
    leave_lost: bool = False,
    until_ms: int | None = None,
) -> Created:
    """Makes every member's data directory if all are empty; does nothing if all belong to one cluster.

    `env`: the environment that the nodes will have; its settings for the whole cluster (the segment size) take effect
    now. With `leave_lost`, directories beside filled ones that are empty, or that hold no node's identity any more,
    stay as they are and are no error. A cluster whose secret lies outside the data directories is made once: a mark
    beside the secret says so, or, with `until_ms`, it is made only until that time (milliseconds since the epoch).
    Raises ConfigError for files that cannot be used, LocalError if members are missing, differ, only some directories
    are filled, or the cluster was made before.
    """
    configs = [load(path, env) for path in config_paths]
    _check_members(configs, config_paths)
    empty = [config for config in configs if is_empty(Path(config.node.data_dir))]
    there = [config for config in configs if not is_without_identity(Path(config.node.data_dir))]
    marks = {mark for config in configs if (mark := mark_of_secret(config)) and until_ms is None}
    if leave_lost and 0 < len(there) < len(configs):
        known = _same_cluster(there)
        _keep(marks, known)
        return Created(False, known, tuple(config.node.id for config in configs if config not in there))
    if empty and there:
        raise _partly(empty[0], there[0])
    if len(empty) == len(configs):
        if until_ms is not None:
            check_allowed(until_ms)
        for mark in marks:
            check_unmade(mark, empty[0].node.data_dir)
        return Created(True, _create(configs, marks))
    known = _same_cluster([each for each in configs if each not in empty])
    complete(configs, str(known))
    _keep(marks, known)
    return Created(False, known)


def _keep(marks: Iterable[Path], known: UUID) -> None:
    for mark in marks:
        keep_mark(mark, str(known))


def check_data_dirs(nodes: Sequence[NodeRecord]) -> UUID:
    """Returns the uuid of the cluster to which all these nodes belong. Raises LocalError if a directory is empty,
    damaged, of a newer version, or belongs to another node or cluster."""
    return _same_cluster([load(node.config_path) for node in nodes])


def known_cluster(config: Config) -> UUID:
    """Returns the uuid of the cluster to which the node's directory belongs. Raises LocalError if it is damaged,
    incomplete, or another node's."""
    return _same_cluster([config])


def is_empty(directory: Path) -> bool:
    """Returns True if the directory is missing, or contains nothing but a lock. Raises LocalError if this user may not
    look into it."""
    try:
        return has_no_data(directory)
    except PermissionError as error:
        raise directory_error(error, directory) from error


def is_without_identity(directory: Path) -> bool:
    """Returns True if the directory is missing, or no node's identity is in it. Raises LocalError if this user may not
    look into it."""
    try:
        return has_no_identity(directory)
    except PermissionError as error:
        raise directory_error(error, directory) from error


def _create(configs: Sequence[Config], marks: Iterable[Path]) -> UUID:
    created_ms = time.time_ns() // 1_000_000
    fixed = configs[0].cluster.id
    cluster_uuid = UUID(fixed) if fixed else uuid.uuid4()
    voters = tuple(Voter(config.node_id, uuid.uuid4()) for config in sorted(configs, key=lambda c: c.node.id))
    segment_size = configs[0].log.segment_size_bytes
    genesis = Genesis(cluster_uuid, configs[0].cluster.group, segment_size, created_ms, voters)
    uuids = dict(voters)
    keys = keys_of_new(configs)
    made: list[Path] = []
    try:
        for config in configs:
            directory = Path(config.node.data_dir)
            directory.parent.mkdir(parents=True, exist_ok=True)
            made.append(directory)
            identity = Identity(cluster_uuid, config.cluster.group, config.node_id, uuids[config.node_id], created_ms)
            create_node_dir(OsFileSystem(), directory, identity, genesis)
            give(config, keys, str(cluster_uuid))
        make_access_files(configs)
        for mark in marks:
            write_mark(mark, str(cluster_uuid))
    except (OSError, StorageError, LocalError) as error:
        for directory in made:  # they were empty before, so they contain nothing that was promised to anybody
            shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, LocalError):
            raise
        raise directory_error(error, made[-1] if made else Path(configs[0].node.data_dir)) from error
    return cluster_uuid


def _check_members(configs: Sequence[Config], paths: Sequence[Path]) -> None:
    """Checks that the configuration files describe one cluster, and each member once. Raises LocalError."""
    first = configs[0]
    ids = sorted(config.node.id for config in configs)
    if ids != [int(voter) for voter in first.voter_ids]:
        raise LocalError(
            f"the configurations are of node {', '.join(map(str, ids))}",
            f"according to {paths[0]} the members are {', '.join(map(str, first.voter_ids))}; give each one once",
            f"on the first machine of a new cluster: raftmq init --first --config {paths[0]}; on each of the others: "
            f"raftmq init --join HOST:PORT --secret SECRET --config {paths[0]}; for all nodes on this machine: "
            "raftmq init --config N1/raftmq.toml --config N2/raftmq.toml …",
            ExitCode.USAGE,
        )
    for config, path in zip(configs, paths, strict=True):
        for key, mine, theirs in (
            ("the [[peers]] ids", config.voter_ids, first.voter_ids),
            ("cluster.id", config.cluster.id, first.cluster.id),
            ("cluster.name", config.cluster.name, first.cluster.name),
            ("cluster.group", config.cluster.group, first.cluster.group),
            ("log.segment_size_bytes", config.log.segment_size_bytes, first.log.segment_size_bytes),
        ):
            if mine != theirs:
                raise LocalError(
                    f"{path} and {paths[0]} differ in {key}",
                    f"{mine} and {theirs}; the value must be the same in the whole cluster",
                    f"make them equal in {path}",
                    ExitCode.USAGE,
                )
    directories = [config.node.data_dir for config in configs]
    if len(set(directories)) < len(directories):
        raise LocalError(
            "two nodes have the same data directory",
            f"the directories are {', '.join(directories)}",
            "give each node its own node.data_dir",
            ExitCode.USAGE,
        )


def _same_cluster(configs: Sequence[Config]) -> UUID:
    fs = OsFileSystem()
    found: UUID | None = None
    for config in configs:
        node_id, directory = config.node_id, Path(config.node.data_dir)
        try:
            identity = identities.load(fs, directory)
            identities.check(identity, Expected(found, config.cluster.group, None), directory)
            if identity.node_id != node_id:
                identities.check(identity, Expected(node_id=type(identity.node_id)(node_id)), directory)
        except (OSError, StorageError) as error:
            raise directory_error(error, directory) from error
        found = identity.cluster_uuid
    assert found is not None
    return found


def _partly(empty: Config, filled: Config) -> LocalError:
    return LocalError(
        f"the data directory of node {empty.node.id} is empty, that of node {filled.node.id} is not",
        f"{empty.node.data_dir} was lost or never created; an empty node must not vote in place of the old one",
        f"raftmq init --leave-lost …    (the others start without it; then raftmq node replace {empty.node.id}); or "
        f"restore {empty.node.data_dir}; or move {filled.node.data_dir} away too, to start a new cluster",
        ExitCode.REFUSED,
    )
