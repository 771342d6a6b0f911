"""Recovers a cluster that has lost the majority of its nodes permanently: one survivor continues alone, as a new
cluster. Reports what may be lost.

This breaks Raft's guarantees on purpose. Nobody can know what the lost nodes acknowledged, so entries beyond the
survivor's log are lost. Entries that only the survivor has become committed. The new cluster uuid excludes every old
node permanently. The alarm about the recovery stays until an operator acknowledges it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from cluster.backup.segments import bases_of, last_of, walk
from cluster.config.local_layout import GROUP_FOLDERS, name_of, node_object
from raftlog import membership as memberships
from raftlog.core.message_plausibility import TERM_STEP_MAX
from raftlog.errors import RaftLogError
from raftlog.frame import make_entry, tail_after
from raftlog.membership import Membership
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout, vote_withheld
from raftlog.storage.files.fs import File, OsFileSystem
from raftlog.storage.files.genesis import Voter
from raftlog.storage.files.hard_state import SLOT_OFFSETS, HardStateStore, decode_slot
from raftlog.storage.files.identity import Ancestor, Identity
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.members import newest_above
from raftlog.storage.node_dir import NodeDir, open_node_dir
from raftlog.types import EMPTY_TAIL, FIRST_GROUP, NOBODY, Entry, EntryType, HardState, LogTail
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.cluster_wide.broker_groups import living_groups, read_groups
from statemachine.trim import Trim, load_mark
from statemachine.trim import encode as encode_trim

if TYPE_CHECKING:
    from statemachine.rows.kv import KV

_SLOT_SIZE = 64


class Survivor(NamedTuple):
    """Facts about the directory of a stopped node. They were read without changing it."""

    directory: Path
    identity: Identity
    members: Membership | None
    """The members by the newest applied MEMBERSHIP entry; None if there is no such entry, so that GENESIS names the
    members."""
    tail: LogTail
    """The last entry of the node's log."""
    timestamp_ms: int
    term: int
    """The term that the node has saved. It has taken part in no later one."""
    applied_index: int
    committed_index: int
    """The highest index that is known to be committed; later entries may be committed too."""
    sound: bool
    """True if all frames up to the sync mark, which the node had synced, can be read."""
    withheld: str
    """The reason why the node may not vote; "" if it may. Such a node has lost entries that it had acknowledged."""
    damage: tuple[str, ...]
    """One sentence for each log file that cannot be read completely. The whole log was read for this."""
    missing: tuple[int, int]
    """The positions, first (inclusive) to second (exclusive), of the log that this node still had to fetch from other
    nodes. Both are equal if it had to fetch nothing."""
    other_groups: tuple[int, ...]
    """Numbers of the other groups of brokers in its cluster, as far as this node knows; () if there is only one
    group."""

    @property
    def losses(self) -> list[str]:
        """Sentences about the entries that may be lost, and those that may become committed."""
        last = self.tail.index
        told = [
            f"every entry after {last} that the lost nodes acknowledged: their number is unknown here",
        ]
        if self.committed_index < last:
            told.append(
                f"nothing of {self.committed_index + 1}..{last}: they are kept, although their senders may have been "
                "told that they failed, or nothing at all"
            )
        if self.withheld:
            told.append(f"entries that this node itself had acknowledged: {self.withheld}")
        if not self.sound:
            told.append("entries of its own log: the end of it is damaged")
        if self.missing[0] < self.missing[1]:
            told.append(
                f"the messages at positions {self.missing[0]}..{self.missing[1]}: it was fetching them from the others "
                "after it had come back by a snapshot"
            )
        return told + [f"messages of its own log: {damage}" for damage in self.damage]


def look_at(directory: Path) -> Survivor:
    """Reads the facts about a stopped node's directory. Raises LocalError if it is no node's directory, is in use, or
    is damaged."""
    lock = _lock(directory)
    try:
        return _read(directory)
    except (RaftLogError, OSError) as error:
        raise _unusable(directory, error) from error
    finally:
        lock.close()


def recover(directory: Path, cluster_uuid: str, now_ms: int, into: uuid.UUID | None = None) -> Membership:
    """Makes the node the only voter of its group in a new cluster; returns the new membership. Raises LocalError.

    `cluster_uuid` must be the uuid of the node's present cluster. `into` is the new cluster into which a survivor of
    another group was recovered before; None for a new one of its own. A call with the same arguments finishes a
    recovery that was interrupted, because the new IDENTITY is written last.
    """
    survivor = look_at(directory)
    if cluster_uuid != str(survivor.identity.cluster_uuid):
        raise LocalError(
            f"{directory} belongs to cluster {survivor.identity.cluster_uuid}, not to {cluster_uuid or 'none'}",
            "the id is required so that this is not done to the wrong cluster",
            f"raftmq unsafe-recover {directory} --plan",
            ExitCode.REFUSED,
        )
    if into == survivor.identity.cluster_uuid:
        raise LocalError(
            f"{into} is the cluster that {directory} belongs to",
            "the lost nodes have that id too, and could come back as a majority",
            "the id that raftmq unsafe-recover printed for the survivor of another group",
            ExitCode.USAGE,
        )
    if into is not None:
        _check_first_survivor(survivor, into)
    if not survivor.sound:
        raise _damaged(directory, "its log is damaged below what it had synced")
    fs = OsFileSystem()
    try:
        opened = open_node_dir(fs, directory)
        try:
            members = _append(opened, survivor, now_ms, into)
        finally:
            opened.close(clean=True)
        _settle_term(fs, directory, survivor.identity.group_id)
        origin = (*survivor.identity.origin, Ancestor(survivor.identity.cluster_uuid, members.index - 1))
        vote_withheld.release(fs, directory)
        identities.save(fs, directory, survivor.identity._replace(cluster_uuid=members.cluster_uuid, origin=origin))
    except (RaftLogError, OSError) as error:
        raise _unusable(directory, error) from error
    return members


def _check_first_survivor(survivor: Survivor, into: uuid.UUID) -> None:
    """Raises LocalError if another node of the same group, whose folder is next to this one's, was recovered into the
    cluster `into`. Each of the two would lead the group alone."""
    own = survivor.directory.parent
    for beside in sorted(own.parent.glob(f"n[0-9]*/{survivor.directory.name}")):
        path = beside / layout.IDENTITY
        if beside.parent == own or not path.is_file():
            continue
        try:
            other = identities.decode(path.read_bytes(), path)
        except (RaftLogError, OSError):  # a node without a readable IDENTITY cannot start, so it cannot lead
            continue
        if (other.cluster_uuid, other.group_id) == (into, survivor.identity.group_id):
            name = name_of(other.group_id, other.node_id)
            raise LocalError(
                f"node {name} is the survivor of group {other.group_id} in cluster {into} already",
                "a second one would lead the group too: each would store messages that the other does not have",
                f"raftmq node add --in-group {other.group_id}    (gives node {name} new members; to take {own.name} "
                f"instead, move {beside.parent} away first)",
                ExitCode.REFUSED,
            )


def ran_away(saved: int, last: int) -> bool:
    """Returns True if the saved term is so far above the term of the last entry that elections cannot explain it."""
    return saved - last > TERM_STEP_MAX


def _settle_term(fs: OsFileSystem, directory: Path, group_id: int) -> None:
    """If the saved term is too high to be true (`ran_away`), replaces it by the term of the last entry, which is the
    first entry of the new cluster. No node of the new cluster has voted in any term, so no vote is forgotten."""
    opened = open_node_dir(fs, directory)
    tail, saved = opened.log.tail, opened.hard_state_store.load().term
    opened.close(clean=True)
    if not ran_away(saved, tail.term):
        return
    path = directory / layout.HARD_STATE
    fresh = path.with_name(f"{layout.HARD_STATE}.settled.tmp")
    fresh.unlink(missing_ok=True)
    store = HardStateStore.create(fs, fresh, group_id)
    store.save(HardState(tail.term, NOBODY, tail.index))
    store.close()
    fs.rename(fresh, path)
    fs.fsync_dir(directory)


def _append(opened: NodeDir, survivor: Survivor, now_ms: int, into: uuid.UUID | None) -> Membership:
    log, identity = opened.log, opened.identity
    if log.damage:
        raise _damaged(opened.path, f"its log is damaged in entries {log.damage.ranges[0].first_index} and later")
    if survivor.applied_index > log.tail.index:
        raise _damaged(
            opened.path, f"its state is at index {survivor.applied_index}, beyond its log's {log.tail.index}"
        )
    begun = newest_above(log, survivor.applied_index)
    if begun is not None and begun.cluster_uuid != identity.cluster_uuid:
        if into not in (None, begun.cluster_uuid):
            raise LocalError(
                f"{opened.path} is on its way into cluster {begun.cluster_uuid}",
                f"an earlier recovery was interrupted; it cannot go into {into} any more",
                f"the same command with --into-cluster {begun.cluster_uuid}, or without it",
                ExitCode.REFUSED,
            )
        return begun
    saved = opened.hard_state_store.load().term
    term = (log.tail.term if ran_away(saved, log.tail.term) else max(saved, log.tail.term)) + 1
    own = node_object(identity.group_id, identity.node_id)
    detail = (
        f"{own} went on alone from cluster {identity.cluster_uuid} after index {log.tail.index} "
        f"(term {log.tail.term}): what the lost nodes had acknowledged beyond that is gone"
    )
    members = Membership(
        into or uuid.uuid4(), (Voter(identity.node_id, identity.node_uuid),), (), memberships.UNSAFE_RECOVER, detail
    )
    payloads = [(EntryType.MEMBERSHIP, memberships.encode(members))]
    if survivor.missing[0] < survivor.missing[1]:  # no node has this part, so the node must not wait for it
        given_up = Trim(log.first_position, log.first_index, "unsafe-recover: no node has the log below")
        payloads.insert(0, (EntryType.TRIM, encode_trim(given_up)))
    if not ran_away(saved, log.tail.term):
        opened.hard_state_store.save(HardState(term, NOBODY, log.tail.index))
    log.append(_stamped(log, term, payloads, now_ms))
    return members._replace(index=log.tail.index)


def _stamped(log: SegmentedLog, term: int, payloads: list[tuple[EntryType, bytes]], now_ms: int) -> list[Entry]:
    entries, tail = [], log.tail
    for kind, payload in payloads:
        entry = make_entry(
            tail,
            term=term,
            entry_type=kind,
            payload=payload,
            timestamp_ms=now_ms,
            group_id=log.genesis.group_id,
            segment_size=log.segment_size,
        )
        entries.append(entry)
        tail = tail_after(tail, entry)
    return entries


def _lock(directory: Path) -> File:
    fs = OsFileSystem()
    try:
        if not (directory / layout.IDENTITY).exists():
            raise _no_node(directory)
        return layout.lock_directory(fs, directory)
    except (RaftLogError, OSError) as error:
        raise _unusable(directory, error) from error


def _read(directory: Path) -> Survivor:
    if (directory / layout.INSTALL).exists():
        raise LocalError(
            f"{directory} is not what it will be",
            "a log and a state that it fetched from the others wait to be put in place, which its next start does",
            f"start the node once, and stop it; then: raftmq unsafe-recover {directory} --plan",
            ExitCode.REFUSED,
        )
    identity = identities.decode((directory / layout.IDENTITY).read_bytes(), directory / layout.IDENTITY)
    group_id = identity.group_id
    log = directory / layout.LOG
    bases = bases_of(log, group_id)
    if not bases:
        raise FileNotFoundError(2, "there is no segment file", str(log))
    tail, sound = last_of(log / layout.segment_name(bases[-1]), group_id)
    saved = _saved(directory / layout.HARD_STATE, group_id)
    with CheckpointReader(directory / layout.STATE) as reader:
        applied, members = reader.mark.index, reader.membership
        begin = load_mark(cast("KV", reader)).position  # `load_mark` only calls `get`
        known = read_groups(reader)
    withheld = vote_withheld.load(OsFileSystem(), directory, group_id)
    return Survivor(
        directory,
        identity,
        members,
        tail,
        tail.timestamp_ms,
        saved.term,
        applied,
        min(tail.index, max(applied, saved.commit_index)),
        sound,
        withheld.reason if withheld else "",
        tuple(_damage(log, bases, group_id)),
        (begin, max(begin, bases[0])),
        tuple(sorted(living_groups(known) - {group_id})) if known or group_id != FIRST_GROUP else (),
    )


def _damage(log: Path, bases: list[int], group_id: int) -> Iterator[str]:
    """Reads every segment file but the last, because damage shows only when the bytes are read. Yields one sentence for
    each damaged file."""
    tail: LogTail | None = EMPTY_TAIL if bases[0] == 0 else None
    for base, end in pairwise(bases):
        try:
            tail, _ = walk(log / layout.segment_name(base), tail, end, group_id)
        except RaftLogError as error:
            yield str(error)
            tail = None


def _saved(path: Path, group_id: int) -> HardState:
    data = path.read_bytes()
    slots = [decode_slot(data[offset : offset + _SLOT_SIZE], group_id) for offset in SLOT_OFFSETS]
    good = [slot for slot in slots if slot is not None]
    return max(good).state if good else HardState(0, NOBODY, 0)


def _no_node(directory: Path) -> LocalError:
    inside = [*sorted(directory.glob("n*/data")), *sorted(directory.glob(f"{GROUP_FOLDERS}/n*/data"))]
    return LocalError(
        f"{directory} holds no node",
        f"there is no {layout.IDENTITY} in it"
        + (f"; the nodes of a local cluster are in {inside[0]} and so on" if inside else ""),
        f"raftmq unsafe-recover {inside[0] if inside else 'DIR'} --plan    (DIR is a survivor's node.data_dir)",
        ExitCode.REFUSED,
    )


def _damaged(directory: Path, why: str) -> LocalError:
    return LocalError(
        f"{directory} cannot go on alone",
        f"{why}, and there would be no node left to repair it from",
        "use another survivor, or the last backup: raftmq restore --from DIR/NAME --into NEWDIR",
        ExitCode.REFUSED,
    )


def _unusable(directory: Path, error: Exception) -> LocalError:
    lines = str(error).split("\n")
    if len(lines) >= 3:
        return LocalError(lines[0], lines[1], lines[2], ExitCode.REFUSED)
    return LocalError(
        f"{directory} cannot be used",
        str(error),
        "use another survivor, or the last backup: raftmq restore --from DIR/NAME --into NEWDIR",
        ExitCode.REFUSED,
    )
