"""Finds the members when a directory is opened: the applied ones, else those of GENESIS, and every later MEMBERSHIP
entry of the log. The newest is in force, committed or not (Ongaro's thesis, 4.1); the one before it is in force again
if the newest is truncated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from raftlog import membership as memberships
from raftlog.errors import DamagedLogError, IdentityError
from raftlog.membership import Membership
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.identity import Identity
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EntryType


def newest_above(log: SegmentedLog, index: int) -> Membership | None:
    """Returns the newest MEMBERSHIP entry above `index`; None if there is none. Skips damaged entries, and raises, as
    `all_above` does."""
    return next(_above(log, index), None)


def all_above(log: SegmentedLog, index: int) -> list[Membership]:
    """Returns every MEMBERSHIP entry above `index`, ascending.

    A damaged entry is skipped. If that entry began another cluster, IDENTITY still names the cluster. Raises
    StorageError if the log cannot be read.
    """
    return [*_above(log, index)][::-1]


def _above(log: SegmentedLog, index: int) -> Iterator[Membership]:
    numbers = {*log.membership_indexes(), *(first for first, _ in log.term_ranges())}
    for number in sorted(numbers, reverse=True):
        if number <= index:
            break
        try:
            (entry,) = log.read_entries(number, number + 1, 1)
        except DamagedLogError:
            continue
        if entry.type == EntryType.MEMBERSHIP:
            yield memberships.decode(entry)


def members_at_opening(
    directory: Path,
    identity: Identity,
    genesis: Genesis,
    log: SegmentedLog,
    applied: Membership | None,
    applied_index: int,
) -> list[Membership]:
    """Returns the memberships of the group, in the form that RawNode takes: ascending, the last one in force.
    `applied`: the newest MEMBERSHIP that the state has applied, up to `applied_index`.

    This node need not be one of the members: it may not know yet that it joined, or it left; then it neither votes for
    itself nor campaigns. Raises IdentityError if they belong to another cluster than IDENTITY, or have this node's id
    as another node's.
    """
    base = applied or memberships.of_genesis(genesis)
    found = [base, *all_above(log, applied_index)]
    newest = found[-1]
    known = dict(chain(newest.removed, newest.voters, newest.learners)).get(identity.node_id)
    if newest.cluster_uuid != identity.cluster_uuid and not _joins(identity, log, newest, known is not None):
        raise IdentityError(
            f"{directory}: the log goes on as cluster {newest.cluster_uuid} from index {newest.index}, IDENTITY says "
            f"{identity.cluster_uuid}.\n"
            "An unsafe-recover or a restore was interrupted, or the directory is a mixture of two nodes.\n"
            f"Finish it: raftmq unsafe-recover {directory} --plan; or restore the backup again into an empty directory."
        )
    if known not in (None, identity.node_uuid):
        raise IdentityError(
            f"{directory}: node {identity.node_id} with uuid {identity.node_uuid} is no member of its cluster, which "
            f"knows node {identity.node_id} as {known}.\n"
            "The directory was copied from elsewhere, or its IDENTITY was.\n"
            "Put back the IDENTITY that belongs to this directory, or replace the node."
        )
    return found


def _joins(identity: Identity, log: SegmentedLog, newest: Membership, known: bool) -> bool:
    """Returns True if this is a joining node that has not yet received the entry with which its cluster continued an
    older one."""
    ancestors = [ancestor.cluster_uuid for ancestor in identity.origin]
    last = [ancestor.last_index for ancestor in identity.origin]
    at = bisect_left(last, log.tail.index)  # the first ancestor whose log reaches at least as far as `log`
    return not known and at < len(ancestors) and newest.cluster_uuid == ancestors[at]
