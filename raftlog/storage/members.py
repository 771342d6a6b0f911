"""Who the members are when a directory is opened: the newest MEMBERSHIP entry, else GENESIS."""

from __future__ import annotations

from pathlib import Path

from raftlog import membership as memberships
from raftlog.errors import DamagedLogError, IdentityError
from raftlog.membership import Membership
from raftlog.storage.genesis import Genesis
from raftlog.storage.identity import Identity
from raftlog.storage.log_reader import LogReader
from raftlog.types import EntryType


def newest_above(log: LogReader, index: int) -> Membership | None:
    """The newest MEMBERSHIP entry above `index`; None if there is none.

    One is the first entry of its term, so only those are looked at; a damaged one is passed over, and IDENTITY tells
    that it was there. Raises StorageError if the log cannot be read.
    """
    for first, _ in reversed(log.term_ranges()):
        if first <= index:
            break
        try:
            (entry,) = log.read_entries(first, first + 1, 1)
        except DamagedLogError:
            continue
        if entry.type == EntryType.MEMBERSHIP:
            return memberships.decode(entry)
    return None


def members_at_opening(
    directory: Path,
    identity: Identity,
    genesis: Genesis,
    log: LogReader,
    applied: Membership | None,
    applied_index: int,
) -> Membership:
    """The members of the group. `applied`: the newest MEMBERSHIP that the state has applied, up to `applied_index`.

    Raises IdentityError if they are of another cluster than IDENTITY, or this node is none of them.
    """
    members = newest_above(log, applied_index) or applied or memberships.of_genesis(genesis)
    if members.cluster_uuid != identity.cluster_uuid:
        raise IdentityError(
            f"{directory}: the log goes on as cluster {members.cluster_uuid} from index {members.index}, IDENTITY says "
            f"{identity.cluster_uuid}.\n"
            "An unsafe-recover or a restore was interrupted, or the directory is a mixture of two nodes.\n"
            f"Finish it: raftmq unsafe-recover {directory} --plan; or restore the backup again into an empty directory."
        )
    known = members.node_uuids.get(identity.node_id)
    if known != identity.node_uuid:
        raise IdentityError(
            f"{directory}: node {identity.node_id} with uuid {identity.node_uuid} is no member of its cluster"
            + (f", which knows node {identity.node_id} as {known}" if known else "")
            + ".\nThe directory was copied from elsewhere, or its IDENTITY was.\n"
            "Put back the IDENTITY that belongs to this directory, or replace the node."
        )
    return members
