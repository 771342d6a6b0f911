"""A node's data directory: lock, identity, hard state and log. It is created once and opened at every start."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from raftlog.errors import CorruptLogError, IdentityError
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout
from raftlog.storage.files.fs import File, FileSystem, storage_error
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.files.identity import Expected, Identity
from raftlog.storage.install import Installed, finish_install
from raftlog.storage.log.segmented_log import SegmentedLog


class NodeDir(NamedTuple):
    """An open data directory, locked until `close`."""

    path: Path
    lock: File
    identity: Identity
    hard_state_store: HardStateStore
    log: SegmentedLog
    installed: Installed | None = None
    """The result of replacing the log by a fetched one (install.py); None if that was not due."""

    def close(self, clean: bool) -> None:
        """Closes the log, then the hard state, then releases the lock. `clean` is True for an orderly stop only."""
        try:
            self.log.close(clean)
            self.hard_state_store.close()
        finally:
            self.lock.close()


def create_node_dir(fs: FileSystem, path: Path, identity: Identity, genesis: Genesis) -> None:
    """Creates the directory of a new node. IDENTITY is written last: without it the directory counts as never created.

    Raises IdentityError if there is something already, or if `identity` is not a voter of `genesis`.
    """
    if (identity.node_id, identity.node_uuid) not in [tuple(voter) for voter in genesis.voters]:
        raise IdentityError(f"node {identity.node_id} with uuid {identity.node_uuid} is not a voter in GENESIS")
    if (identity.cluster_uuid, identity.group_id) != (genesis.cluster_uuid, genesis.group_id):
        raise IdentityError(f"identity and GENESIS are of different clusters or groups: {identity} and {genesis}")
    _create(fs, path, identity, genesis)


def create_joining_dir(fs: FileSystem, path: Path, identity: Identity, genesis: Genesis) -> None:
    """Makes the directory of a node that joins a running cluster. The node knows the GENESIS of the cluster and nothing
    of its log. It becomes a member when a MEMBERSHIP entry says so. IDENTITY is written last.

    `identity.origin` is that of the other nodes. Raises IdentityError if the directory is not empty, if `identity` and
    `genesis` are of different clusters, or if the id was a voter's from the beginning.
    """
    began = _began(identity)
    if (began, identity.group_id) != (genesis.cluster_uuid, genesis.group_id):
        raise IdentityError(f"identity and GENESIS are of different clusters or groups: {identity} and {genesis}")
    known = dict(genesis.voters).get(identity.node_id)
    if known is not None:
        raise IdentityError(
            f"node {identity.node_id} is a voter of this cluster since it began, as {known}.\n"
            "An id is never given to another directory: messages of the one would be taken for the other's.\n"
            "Join with an id that was never used: raftmq node add; to take the place of a dead node: raftmq node "
            f"replace {identity.node_id}"
        )
    _create(fs, path, identity, genesis)


def _began(identity: Identity) -> UUID:
    """Returns the uuid of the cluster that GENESIS began."""
    return identity.origin[0].cluster_uuid if identity.origin else identity.cluster_uuid


def _create(fs: FileSystem, path: Path, identity: Identity, genesis: Genesis) -> None:
    try:
        fs.mkdir(path)
        lock = layout.lock_directory(fs, path)
        try:
            names = [name for name in fs.listdir(path) if name != layout.LOCK]
            if names:
                raise IdentityError(
                    f"{path} is not empty ({', '.join(names[:5])}).\n"
                    "A new node never takes over what is there.\n"
                    f"Start the node that lives there (raftmq up --data ...), or move it away: mv {path} {path}.old"
                )
            HardStateStore.create(fs, path / layout.HARD_STATE, genesis.group_id).close()
            log = SegmentedLog.create(fs, path, genesis=genesis.entry(), segment_size=genesis.segment_size)
            log.close(clean=True)
            identities.save(fs, path, identity)
        finally:
            lock.close()
    except OSError as error:
        raise storage_error(fs, "creating", path, error) from error


def _check_complete(fs: FileSystem, path: Path) -> None:
    """Raises IdentityError if DATA/log is missing, which every node has from its creation on, unless there is an
    INSTALL, which puts another log there."""
    if fs.exists(path / layout.LOG) or fs.exists(path / layout.INSTALL):
        return
    raise IdentityError(
        f"{path} has no {layout.LOG} folder: the log of this node is gone.\n"
        "It held entries that this node had acknowledged, and without them its votes would mislead the others.\n"
        "Put the folder back, or replace the node while the others run: raftmq node replace ID"
    )


def open_node_dir(
    fs: FileSystem,
    path: Path,
    expected: Expected | None = None,
    *,
    hard_state_fs: FileSystem | None = None,
    now_ms: int = 0,
) -> NodeDir:
    """Opens the directory: locks, identifies, loads and recovers it, in this order. Completes or abandons a replacement
    of the log that was interrupted (install.py).

    `expected`: the cluster, group and node that IDENTITY must name; None accepts any. `hard_state_fs`: another
    way to the same disk, for the hard state alone, so that tests can inject faults there separately. `now_ms`: wall
    clock, for the reports on files that are set aside.

    Raises IdentityError if the directory does not exist or holds no node, is in use, lacks its log, or is of a format
    that this version does not read, and if IDENTITY is damaged, names another cluster, group or node than `expected`,
    or another cluster than the log. Raises CorruptLogError if hard state or log cannot be used: damaged beyond repair,
    of another format or group, or a hard state that is older than the log. Raises StorageError if a file operation
    fails.
    """
    if not fs.exists(path):
        identities.load(fs, path)  # raises the IdentityError for a directory that does not exist
    lock: File | None = None
    try:
        identities.refuse_unknown(fs, path)  # checked before locking, because the lock file changes the directory
        lock = layout.lock_directory(fs, path)
        identity = identities.load(fs, path)
        identities.check(identity, expected or Expected(), path)
        _check_complete(fs, path)
        hard_state_store = HardStateStore.open(hard_state_fs or fs, path / layout.HARD_STATE, identity.group_id)
        installed = finish_install(fs, path, identity.group_id, hard_state_store, now_ms)
        committed_index = hard_state_store.load().commit_index
        log = SegmentedLog.open(fs, path, group_id=identity.group_id, now_ms=now_ms, committed_index=committed_index)
        began = _began(identity)
        if log.genesis.cluster_uuid != began:
            raise IdentityError(
                f"{path}: the log belongs to cluster {log.genesis.cluster_uuid}, IDENTITY to {began}.\n"
                "The directory is a mixture of two nodes.\n"
                "Put back the log and hard_state that belong to this IDENTITY, from a backup."
            )
        term = hard_state_store.load().term
        if log.tail.term > term:
            raise CorruptLogError(
                f"{path}: the log has an entry of term {log.tail.term}, but the saved term is {term}. A term is on "
                "disk before its entries, so this hard_state is an older one and may have forgotten a vote. Put back "
                "the one that belongs to this log, or replace the node."
            )
        return NodeDir(path, lock, identity, hard_state_store, log, installed)
    except BaseException as error:
        if lock is not None:
            lock.close()
        if isinstance(error, OSError):
            raise storage_error(fs, "opening", path, error) from error
        raise
