"""Makes a backup from the tier's object store: from a copy of the state, or an older backup, and the log that follows
it.

No node is needed, so this works even if all nodes are lost. Entries that were never uploaded are then lost.
`Rebuilt.known_index` is the highest entry that the cluster is known to have applied. If the backup ends below it,
entries are missing.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.backup import files
from cluster.backup import manifest as manifests
from cluster.backup.files import name_of
from cluster.backup.manifest import LOG, STATE, Manifest
from cluster.backup.remote import opened, run
from cluster.backup.replay import WORK, BackupFacts, Replay, RestoreTarget
from cluster.backup.segments import last_of
from cluster.backup.tier_clusters import MEASURED_MAX, RestorePoint, choose, coverage_of
from cluster.backup.tier_objects import LogObject, TierObjects, find_clusters
from cluster.config.node_sections import ClusterSection
from cluster.tier.state_copies.state_copier import StateCopy
from cluster.tier.store.object_store import ObjectStore
from cluster.tier.stored_files import DamagedObjectError, fetch
from raftlog.errors import FrameError, RaftLogError
from raftlog.frame import FrameHeader, decode_entries
from raftlog.storage.files import genesis as genesis_format
from raftlog.storage.files.layout import segment_name
from raftlog.types import EMPTY_TAIL, LogTail
from raftmq_wire.errors import ExitCode, LocalError

TellStage = Callable[[str], None]


class TierRestore(NamedTuple):
    """A request to restore from a tier."""

    url: str
    """URL of the tier."""
    target: RestoreTarget = RestoreTarget()
    cluster_id: str | None = None
    """The uuid of the cluster to restore. None: that of the backup to begin with, or of the only cluster in the
    tier."""
    backup: Path | None = None
    """A local backup to begin with; None to begin with a copy of the state from the tier."""
    backup_name: str = ""
    """The name of that backup as the person typed it; "" without one."""
    rest: tuple[str, ...] = ("--into", "DIR")
    """All other options of the command, as the person typed them. Error messages suggest commands that contain them."""

    def command(self, *, cluster_id: str | None = None, target: RestoreTarget | None = None, anew: bool = False) -> str:
        """Returns the command for this restore. `cluster_id` and `target` replace this request's, if they are given.
        `anew` leaves out the backup to begin with."""
        cluster_id, target = cluster_id or self.cluster_id, self.target if target is None else target
        words = ["raftmq", "restore"]
        words += ["--from", self.backup_name] if self.backup_name and not anew else []
        words += ["--from-tier", self.url]
        words += ["--cluster", cluster_id] if cluster_id else []
        words += target.option.split()
        return shlex.join([*words, *self.rest])


class Rebuilt(NamedTuple):
    """A backup that was made from a tier."""

    path: Path
    manifest: Manifest
    began: str
    """A text that says where the rows come from: a copy of the state, a backup, or GENESIS, the log's first entry."""
    known_index: int
    """The highest index that the cluster is known to have applied."""


def rebuild(asked: TierRestore, folder: Path, now_ms: int, on_stage: TellStage = lambda stage: None) -> Rebuilt:
    """Makes a backup in the new folder `folder`. `now_ms` is the wall clock in ms, for its name. Raises LocalError if
    `folder` exists, which is then left alone, or if the backup cannot be made; then it has removed the folder."""
    if folder.exists():
        raise LocalError(
            f"{folder} is in the way",
            "what is fetched is kept there until the command ends, and one was interrupted or is running now",
            f"rm -r {folder}    (if none is running)",
            ExitCode.REFUSED,
        )
    try:
        folder.mkdir(parents=True)
        return run(asked.url, _rebuild(asked, folder, now_ms, on_stage))
    except OSError as error:
        left = files.remove_tree(folder)
        raise LocalError(
            f"what {asked.url} holds could not be brought to {folder}",
            f"{error.strerror or error}; {files.free_text(folder.parent)}{left}",
            "free space, or restore onto another disk",
        ) from error
    except RaftLogError as error:
        files.remove_tree(folder)
        raise LocalError(
            "the log could not be applied",
            str(error),
            "begin with an older state: --to-index below it, or another backup",
        ) from error
    except BaseException:
        files.remove_tree(folder)
        raise


async def _rebuild(asked: TierRestore, folder: Path, now_ms: int, on_stage: TellStage) -> Rebuilt:
    async with opened(asked.url, None) as store:
        given = None if asked.backup is None else manifests.load(asked.backup)
        wanted = asked.cluster_id or (given.cluster_uuid if given else None)
        if given is not None and given.cluster_uuid != wanted:
            raise LocalError(
                f"the backup {given.name} is of cluster {given.cluster_uuid}",
                f"the log of {wanted} does not continue it",
                "leave --cluster out, or use a backup of that cluster",
                ExitCode.REFUSED,
            )
        on_stage("listing the store")
        clusters = await find_clusters(store, asked.url, wanted)
        if len(clusters) > 1:
            raise await _several(asked, store, clusters, on_stage)
        (cluster,) = clusters
        objects = TierObjects(store, cluster)
        await objects.load(given.origin if given else ())
        if given is not None and asked.backup is not None:
            began, replay = f"backup {given.name}", _begin_with_backup(asked, given, folder)
        else:
            began, replay = await _begin(asked, objects, folder, on_stage)
        try:
            reached = await _go_on(replay, objects, asked, on_stage)
            _check_end(replay, asked, reached)
            name = name_of(now_ms, cluster, 0, replay.log.tail.index)
            manifest = replay.finish(name, now_ms)
        finally:
            replay.close()
    return Rebuilt(folder, manifest, began, objects.known_index)


async def _several(asked: TierRestore, store: ObjectStore, clusters: Sequence[str], on_stage: TellStage) -> LocalError:
    """Returns the error for a store with the tiers of several clusters. It describes each, and suggests a command with
    the one that is most likely meant."""
    found = []
    for at, cluster in enumerate(clusters[:MEASURED_MAX], 1):
        on_stage(f"looking at cluster {at} of {len(clusters)}")
        found.append(await coverage_of(store, cluster))
    more = len(clusters) - len(found)
    chosen, why = choose(found, asked.target)
    command = asked.command(cluster_id=chosen.cluster_id, target=chosen.nearest(asked.target))
    return LocalError(
        f"{asked.url} holds the tiers of {len(clusters)} clusters",
        "; ".join([*map(str, found), *([f"and {more} more"] if more else [])]),
        f"{command}    ({why})",
        ExitCode.REFUSED,
    )


# --- what the rows begin with ----------------------------------------------------------------------------------------


async def _begin(asked: TierRestore, objects: TierObjects, folder: Path, on_stage: TellStage) -> tuple[str, Replay]:
    """Begins with the newest copy of the state at or below the target that can be read, and for which the store has the
    log that it needs. Without such a copy, begins with GENESIS, the first entry of the log. Returns (a text about the
    beginning, the replay). Raises LocalError if there is neither."""
    problems = list(objects.bad_copies)
    below = [copy for copy in objects.copies if not asked.target.is_below(copy.index, copy.timestamp_ms)]
    for copy in below:
        begins = LogTail(*copy.log_begins)
        if objects.reaches(begins.end_position) < copy.position:
            problems.append(f"the copy at index {copy.index} needs the log up to {copy.position}, which is not there")
            continue
        on_stage(f"fetching the state at index {copy.index}")
        try:
            await _fetch_state(objects, copy, folder)
        except DamagedObjectError as error:
            problems.append(str(error))
            shutil.rmtree(folder / WORK)
            continue
        return f"the state copied at index {copy.index}", Replay(folder, _facts_of(copy), begins)
    if objects.begins() == 0:
        facts = await _facts_of_genesis(objects, asked)
        if facts is not None:
            return "GENESIS", Replay(folder, facts, EMPTY_TAIL)
    raise _nothing_to_begin_with(asked, objects, problems)


async def _fetch_state(objects: TierObjects, copy: StateCopy, folder: Path) -> None:
    files.need(folder, sum(file.size for file in copy.files))
    (folder / WORK).mkdir()
    for file in copy.files:
        await fetch(objects.store, objects.cluster_id, file, folder / WORK)


def _facts_of(copy: StateCopy | Manifest) -> BackupFacts:
    return BackupFacts(
        cluster_uuid=copy.cluster_id if isinstance(copy, StateCopy) else copy.cluster_uuid,
        cluster_name=copy.cluster_name,
        broker_name=copy.broker_name,
        group_id=copy.group_id,
        segment_size=copy.segment_size,
        origin=copy.origin,
        genesis=copy.genesis,
        node=copy.node,
        versions=copy.versions,
    )


async def _facts_of_genesis(objects: TierObjects, asked: TierRestore) -> BackupFacts | None:
    """Returns the facts about the cluster from GENESIS, the first entry of its log. Returns None if the store has no
    readable object with that entry. Raises LocalError if the target lies before it."""
    for wanted in objects.at(0):
        data, _ = await objects.read(wanted)
        if data:
            entry = next(decode_entries(data))
            began = genesis_format.decode(entry)
            if str(began.cluster_uuid) == objects.cluster_id:
                if asked.target.is_below(entry.index, entry.timestamp_ms):
                    first = RestorePoint(entry.index, entry.timestamp_ms)
                    raise LocalError(
                        f"{asked.target} lies before the first entry of the log",
                        f"the earliest moment in the tier is {first}",
                        asked.command(target=asked.target.like(*first)),
                        ExitCode.REFUSED,
                    )
                named = ClusterSection()
                return BackupFacts(
                    cluster_uuid=objects.cluster_id,
                    cluster_name=named.name,
                    broker_name=named.broker_name,
                    group_id=FrameHeader(entry.header).group_id,
                    segment_size=began.segment_size,
                    origin=[],
                    genesis=(entry.header + entry.payload).hex(),
                    node=0,
                    versions={},
                )
    return None


def _begin_with_backup(asked: TierRestore, given: Manifest, folder: Path) -> Replay:
    """Begins with a copy of a local backup. The caller has verified the backup. Raises LocalError if the target lies
    before it."""
    assert asked.backup is not None
    if asked.target.is_below(given.index, given.timestamp_ms):
        raise LocalError(
            f"the backup {given.name} lies above {asked.target}",
            f"it was made at {RestorePoint(given.index, given.timestamp_ms)}, and nothing can be taken back",
            f"{asked.command(anew=True)}    (the tier may have an older state; or use an older backup)",
            ExitCode.REFUSED,
        )
    files.need(folder, given.bytes_total)
    shutil.copytree(asked.backup / STATE, folder / WORK)
    shutil.copytree(asked.backup / LOG, folder / LOG)
    last = folder / LOG / segment_name(given.segments[-1].base_position)
    tail, _ = last_of(last, given.group_id)
    return Replay(folder, _facts_of(given), tail, given.segments)


def _nothing_to_begin_with(asked: TierRestore, objects: TierObjects, problems: list[str]) -> LocalError:
    begins = objects.begins()
    where = "there is no object of its log" if begins is None else f"its log there begins at position {begins}"
    oldest = objects.oldest_copy()
    if oldest is not None and not problems:
        first = RestorePoint(oldest.index, oldest.timestamp_ms)
        return LocalError(
            f"{asked.target} lies below the oldest copy of the state",
            f"the earliest moment in the tier is {first}, and {where}",
            f"{asked.command(target=asked.target.like(*first))}    (or begin with an older backup: add --from BACKUP)",
            ExitCode.REFUSED,
        )
    if oldest is None and objects.copies and not problems:
        problems = ["no copy of the state has the log that it needs there"]
    return LocalError(
        f"{asked.url} has no copy of the state of cluster {objects.cluster_id} that can be used",
        "; ".join([*problems[:3], where]),
        f"{asked.command()} --from BACKUP    (begin with a backup)",
        ExitCode.REFUSED,
    )


# --- the log after it ------------------------------------------------------------------------------------------------


async def _go_on(replay: Replay, objects: TierObjects, asked: TierRestore, on_stage: TellStage) -> bool:
    """Applies the entries up to the target, or up to the end of the log in the store. Returns True if the target is
    known to be reached. Raises LocalError if the log is damaged, StoreError if the store does not answer."""
    while asked.target.index is None or replay.log.tail.index < asked.target.index:
        position = replay.log.tail.end_position
        on_stage(f"applying the log from index {replay.log.tail.index + 1}")
        problems = []
        for wanted in objects.at(position):
            data, problem = await objects.read(wanted)
            if problem:
                problems.append(problem)
                continue
            if _take(replay, wanted, data, asked.target):
                return True
            if replay.log.tail.end_position > position:
                break
        else:
            if problems:
                raise _damaged_log(asked, replay.log.tail, problems)
            return asked.target.time_ms is not None and replay.log.tail.timestamp_ms == asked.target.time_ms
    return True


def _damaged_log(asked: TierRestore, tail: LogTail, problems: list[str]) -> LocalError:
    return LocalError(
        f"the log in {asked.url} is damaged after {RestorePoint(tail.index, tail.timestamp_ms)}",
        "; ".join(problems),
        f"{asked.command(target=RestoreTarget(tail.index))}    (what lies below; or mend the object, and try again)",
        ExitCode.REFUSED,
    )


def _take(replay: Replay, wanted: LogObject, data: bytes, target: RestoreTarget) -> bool:
    """Applies the entries of one object's `data` that lie above the end of the log. Returns True if the target is
    reached, False if the data ends before. Entries of an ancestor are applied only up to the last shared index. If the
    first entry does not continue the log, the object belongs to another history: nothing of it is applied, and the
    result is False. Raises FrameError if a later entry is damaged."""
    start = replay.log.tail.end_position - wanted.part.base
    until = wanted.folder.last_index
    try:
        for entry in decode_entries(data[start:]):
            if until is not None and entry.index > until:
                return False
            if target.passed_by(entry):
                return True
            replay.take(entry)
    except FrameError:
        if replay.log.tail.end_position - wanted.part.base > start:
            raise
        return False
    return target.index == replay.log.tail.index


def _check_end(replay: Replay, asked: TierRestore, reached: bool) -> None:
    tail = replay.log.tail
    last = f"the last entry in the tier is that of {RestorePoint(tail.index, tail.timestamp_ms)}"
    command = asked.command(target=RestoreTarget(tail.index), anew=tail.index < replay.state.applied.index)
    if tail.index < replay.state.applied.index:
        raise LocalError(
            f"the log there ends below the state, which is at index {replay.state.applied.index}",
            last,
            f"{command}    (it begins with an older state)",
            ExitCode.REFUSED,
        )
    if asked.target != RestoreTarget() and not reached:
        raise LocalError(f"{asked.target} lies beyond what is there", last, command, ExitCode.REFUSED)
