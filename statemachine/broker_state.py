"""The state machine: applies runs of committed entries and answers reads.

A *run* is a sequence of committed entries that are applied together. Their rows and the new applied index are written
in one batch. A *row* is one key with its value in the store.

Threads: `apply` runs on one thread; every other public member may be used on any thread meanwhile. The views in memory
are replaced only after the batch is written, and `applied` last. A reader that sees an applied index, a topic, an end
of a queue or a session can therefore read its rows.

The state machine uses no clock and no randomness: rows and results are a function of the log, on every replica, however
its entries were grouped into runs. A TRIM makes a batch of its own, because it reads rows as they lie in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE, why_above
from raftlog.membership import Membership
from raftlog.types import FLAG_ROLL, Entry, EntryId, EntryType
from statemachine import commands, payload, queue_reads
from statemachine.access.users import NOBODY, Access
from statemachine.commands import Command, CommandResult, InvalidCommandError
from statemachine.consume_queue import ConsumeQueues
from statemachine.consuming.consumer_offsets import ConsumerOffsets
from statemachine.consuming.groups import GroupConfig, Groups
from statemachine.consuming.offset_resets import OffsetReset, OffsetResets
from statemachine.consuming.queue_locks import QueueLock, QueueLocks, checked_user
from statemachine.consuming.queue_rows import Queue
from statemachine.dedup import Dedup, ProducerSession, UniqueMessage
from statemachine.delivery.half_messages import HalfMessages
from statemachine.delivery.staged_writes import StagedWrites
from statemachine.delivery.timers import Timers
from statemachine.members import Members
from statemachine.message_index import MessageIndex
from statemachine.payload import RowKind
from statemachine.queue_reads import QueueItem
from statemachine.removal_slices import RemovalSlices
from statemachine.removals import Removals
from statemachine.rows import keys
from statemachine.rows.kv import CQ, INDEX, KV, META
from statemachine.rows.row_format import check_format, check_level
from statemachine.rows.running_digest import MARKERS, Count, RunningSums
from statemachine.rows.running_digest import count as count_rows
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage
from statemachine.settings import Settings
from statemachine.tier import TierSegment, TierSegments
from statemachine.topics import Stamp, TopicConfig, Topics
from statemachine.trim import Kept, RemoveRows, Slice, Sweep, TrimMark, TrimState, highest, runs_of
from statemachine.trim import decode as decode_trim

_IN_NO_QUEUE = int(RowKind.SCHEDULED)
"""The lowest RowKind of messages that are not in a queue yet; all higher kinds are such messages too."""
_CARRIED = int(RowKind.CARRIED_TIMERS)
"""The lowest RowKind of messages that are stored again at a later position. Their rows replace earlier ones, also if
their topic was deleted meanwhile; a command drops the row then."""
_INDEX_ONLY = (EntryType.GENESIS, EntryType.NOOP, EntryType.DIGEST)


class AppliedMark(NamedTuple):
    """The last applied entry: its term, index and end in the log. Recovery compares it with the log."""

    term: int
    index: int  # type: ignore[assignment]
    end_position: int
    """Position in the log at which the next frame begins."""
    timestamp_ms: int
    header_crc: int


NOTHING_APPLIED = AppliedMark(0, -1, 0, 0, 0)


class ApplyRun(NamedTuple):
    """The outcome of applying a run: for each entry the results of its commands (or effects), and the queues that
    grew."""

    results: list[list[CommandResult]]
    grown: set[tuple[int, int]]
    """(topic_id, queue_id) of each queue that got messages or was reset. Consumers that wait for messages of such a
    queue are woken."""


class BrokerState:
    """The state of one Raft group, stored in a KV that nobody else writes. Raises KVError if a newer version
    wrote it."""

    def __init__(self, kv: KV, count: Count = count_rows, known_level: int = commands.LEVEL) -> None:
        """`count` counts all rows if the stored state does not have its sums (`RunningSums`). `known_level`: the
        highest level of a cluster that this version knows; a state of a higher level is refused."""
        self._kv = kv
        check_format(kv)
        self._level = self._staged_level = check_level(kv, known_level)
        self._known_level = known_level
        self._topics = Topics(kv)
        self._groups = Groups(kv)
        self._removals = Removals(kv)
        self._offsets = ConsumerOffsets(kv, self._removals)
        self._resets = OffsetResets(kv, self._removals)
        self._locks = QueueLocks(kv, self._removals)
        self._queues = ConsumeQueues(kv, removed=self._removals.topics)
        self._dedup = Dedup(kv)
        self.writes = StagedWrites(kv, self._removals)
        """Messages of staged writes (Spark), which wait for a commit. Any thread may use the members that its class
        names."""
        self._slices = RemovalSlices(
            self._removals, self._queues, self._dedup, self._offsets, self._locks, self._resets, self.writes
        )
        self._index = MessageIndex(kv)
        self.timers = Timers(kv, self.writes)
        """Scheduled messages, which wait until they are due, and the rows of messages of staged writes."""
        self.halves = HalfMessages(kv)
        """Half messages, whose transactions are open. Any thread may use the members that its class names."""
        self.tier = TierSegments(kv)
        """The log's segments in object storage. Any thread may use the members that its class names."""
        self.settings = Settings(kv)
        """The configuration of the cluster. Any thread may use the members that its class names."""
        self.access = Access(kv, lambda: self._staged_level)
        """Users and their rules. Any thread may use the members that its class names."""
        self._members = Members(kv)
        self._trim = TrimState(kv)
        self._mark = _load_mark(kv)
        self.sums = RunningSums(kv, self._mark.index, count)
        """The digest of all rows as of the last applied entry, and as of the last few marker entries."""
        self._failure: str | None = None
        self._stamp = Stamp(0, "")
        """Log time and author of the entry whose commands are being applied."""

    # -- reads, any thread

    @property
    def applied(self) -> EntryId:
        """(term, index) of the last applied entry; (0, -1) if there is none."""
        return EntryId(self._mark.term, self._mark.index)

    @property
    def applied_mark(self) -> AppliedMark:
        """The last applied entry with its end in the log."""
        return self._mark

    @property
    def topics(self) -> SortedMap[str, TopicConfig]:
        """Every topic by name. The apply thread changes the map while others read it; `SortedMap` says which keys an
        iteration meets."""
        return self._topics.by_name

    @property
    def topics_by_id(self) -> SortedMap[int, TopicConfig]:
        """Every topic by id, in a map that changes like `topics`."""
        return self._topics.by_id

    @property
    def queue_count(self) -> int:
        """The number of queues of all topics together."""
        return self._topics.queues

    @property
    def groups(self) -> SortedMap[str, GroupConfig]:
        """Every consumer group by name, in a map that changes like `topics`."""
        return self._groups.by_name

    @property
    def membership(self) -> Membership | None:
        """The newest MEMBERSHIP entry that was applied; None as long as the members are those of GENESIS, the first
        entry."""
        return self._members.membership

    @property
    def acknowledged(self) -> int:
        """Index of the newest MEMBERSHIP event that an operator acknowledged; 0 for none."""
        return self._members.acknowledged

    @property
    def level(self) -> int:
        """The level of the cluster: its log may contain commands up to this level (`commands.LEVELS`)."""
        return self._level

    def locks_of_group(self, group: str) -> Mapping[Queue, QueueLock]:
        """Returns the queue locks of the consumer group by queue, expired ones included."""
        return self._locks.of_group(group)

    def resets_of_group(self, group: str) -> Mapping[Queue, OffsetReset]:
        """Returns the group's offset resets, by queue, of which its consumers have not been told."""
        return self._resets.of_group(group)

    @property
    def has_resets(self) -> bool:
        """True if any group has an offset reset of which its consumers have not been told."""
        return not self._resets.is_empty

    @property
    def trim_mark(self) -> TrimMark:
        """The beginning of the log, and the TRIM that set it."""
        return self._trim.mark

    @property
    def sweep(self) -> Sweep | None:
        """The cut of the log's beginning that is being carried out slice by slice; None if there is none."""
        return self._trim.sweep

    @property
    def removing(self) -> int:
        """The number of deleted topics, deleted groups and other removals whose rows are not all gone yet."""
        return self._removals.pending

    @property
    def trim_position(self) -> int:
        """The position in the log below which the state refers to nothing; 0 if the log was never trimmed."""
        return self._trim.mark.position

    @property
    def trim_index(self) -> int:
        """Index of the entry at `trim_position`."""
        return self._trim.mark.first_index

    @property
    def kept(self) -> Kept:
        """The beginning of the log that is still kept, on this node or in the tier. It is below `trim_position` if
        segments were evicted, and so are only in the tier."""
        return self._trim.kept

    @property
    def kept_segments(self) -> tuple[TierSegment, ...]:
        """The segments in the tier that hold something of the log that is still kept. Segments that a TRIM removed for
        everybody are not among them: their objects may be gone."""
        return self.tier.above(self.kept.position)

    def lowest_pinned_position(self) -> int | None:
        """Returns the lowest position in the log to which a row of a scheduled or half message refers; None if there is
        no such row. The value may be lower than any row's position if the search ended early because it had too much to
        pass (`Timers.lowest_position`)."""
        timers = self.timers.lowest_position(self.trim_position, self._mark.end_position)
        pinned = (timers, self.halves.lowest_position())
        return min([position for position in pinned if position is not None], default=None)

    def offset(self, group: str, topic_id: int, queue_id: int) -> int | None:
        """Returns the group's committed offset of the queue, the next to consume; None if the group never committed
        one."""
        return self._offsets.get(group, topic_id, queue_id)

    def offsets_of_group(self, group: str) -> list[tuple[int, int, int]]:
        """Returns (topic_id, queue_id, offset) of every queue for which the group has committed an offset,
        ascending."""
        return self._offsets.sorted_of_group(group)

    def offsets_by_topic(self, group: str) -> dict[int, Mapping[int, int]]:
        """Returns topic id -> queue id -> offset of every queue for which the group has committed an offset, in no
        order. Takes one step per topic."""
        return self._offsets.by_topic(group)

    def stored_queues(self, topic: TopicConfig) -> int:
        """Returns the number of queues that the topic has or had: those that it lost when their number was reduced
        count as long as they have rows. Their messages are kept like all others, and are there again once the topic has
        the queue again."""
        if topic.id in self._removals.topics:
            return topic.queues
        return max(topic.queues, queue_reads.queues_with_rows(self._kv, topic.id))

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the offset that the queue's next message gets, 0 if it never had messages. Offsets below it, down to
        `min_offset`, can be fetched."""
        return self._queues.max_offset(topic_id, queue_id)

    def min_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that this node's log still has; `max_offset` if it has none."""
        return self._queues.min_offset(topic_id, queue_id)

    def kept_offset(self, topic_id: int, queue_id: int) -> int:
        """Returns the first offset of the queue that is kept on this node or in the tier. It is below `min_offset` if
        messages were evicted to the tier; the lowest of those may be gone from there as well."""
        if topic_id in self._removals.topics:
            return 0
        return queue_reads.kept_offset(self._kv, topic_id, queue_id)

    def fetch(self, topic_id: int, queue_id: int, queue_offset: int, count_max: int) -> list[QueueItem]:
        """Returns up to `count_max` items of the queue from `queue_offset` on; [] outside min_offset..max_offset."""
        return queue_reads.unpack_items(self.fetch_packed(topic_id, queue_id, queue_offset, count_max), queue_offset)

    def fetch_packed(self, topic_id: int, queue_id: int, queue_offset: int, count_max: int) -> bytes:
        """Returns the same items as `fetch`, packed (`payload.ITEM`) and back to back."""
        if queue_offset < self.min_offset(topic_id, queue_id):
            return b""
        end = min(queue_offset + count_max, self.max_offset(topic_id, queue_id))
        try:
            return queue_reads.fetch_packed(self._kv, topic_id, queue_id, queue_offset, end)
        except InvariantViolationError:
            if topic_id in self._topics.by_id:
                raise
            return b""  # it was deleted since the end was looked up

    def offset_by_time(self, topic_id: int, queue_id: int, timestamp_ms: int, upper: bool) -> int:
        """Returns the queue's first offset stored at or after the time (max_offset if none); with `upper`, the last one
        stored at or before it (min_offset if none)."""
        low, high = self.min_offset(topic_id, queue_id), self.max_offset(topic_id, queue_id)
        return queue_reads.offset_by_time(self._kv, topic_id, queue_id, timestamp_ms, upper, low, high)

    @property
    def message_index(self) -> MessageIndex:
        """The index of messages by key. Callers use its `bucket_below` and `candidates`."""
        return self._index

    def session(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the session of the producer with this id (16 bytes); None if it is unknown or expired."""
        return self._dedup.session(producer_id)

    def max_sequence(self, producer_id: bytes) -> int:
        """Returns the highest sequence number of the producer that is stored; 0 if the producer is unknown or
        expired."""
        return self._dedup.max_sequence(producer_id)

    def session_at_hand(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the producer's session. Raises SessionUnreadError if the session is long and not in memory; the
        caller then calls `read_session` first."""
        return self._dedup.session_at_hand(producer_id)

    def read_session(self, producer_id: bytes) -> Iterator[None]:
        """Reads a long session into memory in short steps, so that `session_at_hand` finds it. Only one reader per
        producer at a time."""
        return self._dedup.read_session(producer_id)

    def unique(self, topic_id: int, key_hash: int, body_crc: int) -> UniqueMessage | None:
        """Returns the place of the stored message with this key and body, in a topic with dedup=strict; None if there
        is none."""
        if topic_id in self._removals.topics:
            return None
        return self._dedup.unique(topic_id, key_hash, body_crc)

    # -- apply, one lane

    def apply(self, entries: Sequence[Entry]) -> ApplyRun:
        """Applies the entries that follow `applied` in one batch, or in more if one of them is a TRIM. Raises
        InvariantViolationError or KVError: then no part of the failed batch is visible, the node must stop, and every
        later call is refused."""
        if self._failure is not None:
            raise InvariantViolationError(f"apply has failed before and the state is frozen: {self._failure}")
        if not entries:
            return ApplyRun([], set())
        try:
            done = [self._apply_run(part) for part in runs_of(entries)]
        except BaseException as error:
            self._failure = str(error) or repr(error)
            raise
        if len(done) == 1:
            return done[0]
        return ApplyRun([result for run in done for result in run.results], set().union(*(run.grown for run in done)))

    def _apply_run(self, entries: Sequence[Entry]) -> ApplyRun:
        stage = Stage(self._kv)
        if self._mark is NOTHING_APPLIED:  # first, so that it counts for a marker in this run
            stage.put(META, keys.FORMAT_KEY, keys.U32.pack(keys.FORMAT))
        term, index = self._mark.term, self._mark.index
        results: list[list[CommandResult]] = []
        for entry in entries:
            if entry.index != index + 1 or entry.term < term:
                raise InvariantViolationError(
                    f"entry (term {entry.term}, index {entry.index}) does not follow (term {term}, index {index})"
                )
            term, index = entry.term, entry.index
            if entry.flags & FLAG_ROLL:
                self._index.roll(stage, entry.timestamp_ms)
            results.append(self._apply_entry(stage, entry))
            if entry.type in MARKERS:
                self.sums.mark(stage, index)
        self.timers.stage_front(stage)
        mark = AppliedMark(term, index, entry.end_position, entry.timestamp_ms, entry.header_crc)
        stage.put(META, keys.APPLIED_KEY, keys.APPLIED.pack(*mark))
        self.sums.stage(stage, index)
        self._kv.write(stage.batch())
        return ApplyRun(results, self._publish(mark))

    def _publish(self, mark: AppliedMark) -> set[tuple[int, int]]:
        self._topics.publish()
        self._removals.publish()
        self._groups.publish()
        self._offsets.publish()
        self._locks.publish()
        reset = self._resets.publish_new()
        self._level = self._staged_level
        self._dedup.publish()
        self._index.publish()
        self.timers.publish()
        self.halves.publish()
        if self.writes.changed:
            self.writes.publish()
        if self.tier.changed:
            self.tier.publish()
        if self.settings.changed:
            self.settings.publish()
        if self.access.changed:
            self.access.publish()
        self._members.publish()
        if self._trim.changed:
            self._trim.publish()
        grown = self._queues.publish() | reset
        self.sums.publish()
        self._mark = mark
        return grown

    def _apply_entry(self, stage: Stage, entry: Entry) -> list[CommandResult]:
        kind = entry.type
        try:
            if kind == EntryType.MESSAGES:
                return self._apply_messages(stage, entry)
            if kind == EntryType.COMMAND:
                self._stamp = Stamp(entry.timestamp_ms, "")
                return self._apply_commands(stage, commands.unpack(entry.payload))
            if kind == EntryType.CHANGE:
                author, run = commands.unpack_change(entry.payload)
                self._stamp = Stamp(entry.timestamp_ms, author)
                return self._apply_commands(stage, run)
            if kind == EntryType.MEMBERSHIP:
                self._members.set(stage, entry)
                return []
            if kind == EntryType.TRIM:
                self._apply_trim(stage, entry)
                return []
        except (InvariantViolationError, ValueError) as error:
            raise InvariantViolationError(f"entry (term {entry.term}, index {entry.index}): {error}") from error
        if kind not in _INDEX_ONLY:
            raise InvariantViolationError(
                f"entry (term {entry.term}, index {entry.index}) is of type {kind}, which this version cannot apply: "
                f"was it written by a newer RaftMQ?"
            )
        return []

    def _apply_messages(self, stage: Stage, entry: Entry) -> list[CommandResult]:
        """Applies a MESSAGES entry: first its effects (commands), then its rows. The leader decided the rows, so a row
        that contradicts the state stops the node."""
        decoded = payload.decode(entry.payload)
        results: list[CommandResult] = []
        if decoded.effects:
            self._stamp = Stamp(entry.timestamp_ms, "")
            results = self._apply_commands(stage, commands.unpack(decoded.effects))
        topics, append = self._topics, self._queues.append
        for run in decoded.iter_runs():
            topic_id, queue_id, base, count, kind, items = run
            known = topics.exists(topic_id)
            if known and kind < _IN_NO_QUEUE:
                append(stage, topic_id, queue_id, base, count, items)
            elif known or kind >= _CARRIED:
                self._keep(stage, run, entry.timestamp_ms)
            else:
                raise InvariantViolationError(f"{count} rows for topic id {topic_id}, which does not exist")
        if decoded.sessions:
            for session in decoded.iter_sessions():
                self._dedup.add_session(stage, session, entry.index, entry.timestamp_ms)
        if decoded.unique:
            for row in decoded.iter_unique():
                self._dedup.add_unique(stage, row, entry.timestamp_ms)
        if decoded.keys:
            self._index.add(stage, entry.position, entry.end_position, entry.timestamp_ms, decoded.keys)
        return results

    def _keep(self, stage: Stage, run: payload.Run, now_ms: int) -> None:
        """Stores a run of messages that are in no queue yet: scheduled or half messages."""
        if run.kind == RowKind.SCHEDULED:
            self.timers.add(stage, run.topic_id, run.queue_id, run.base_offset, run.items, now_ms)
        elif run.kind == RowKind.HALF:
            self.halves.add(stage, run.topic_id, run.queue_id, run.base_offset, run.items)
        elif run.kind == RowKind.CARRIED_TIMERS:
            self.timers.carry(stage, run.base_offset, run.items)
        elif run.kind == RowKind.CARRIED_HALF:
            self.halves.carry(stage, run.base_offset, run.items)
        else:
            raise InvariantViolationError(f"rows of kind {run.kind}: were they written by a newer RaftMQ?")

    def _apply_trim(self, stage: Stage, entry: Entry) -> None:
        """Applies a TRIM entry: moves the beginning of the log, of every queue and of the index, or begins or continues
        to do so in slices. The entry has a batch of its own (`runs_of`)."""
        trim = decode_trim(entry.payload)
        if isinstance(trim, RemoveRows):
            self._slices.go_on(stage, trim.rows)
        elif isinstance(trim, Slice):
            sweep = self._trim.sweep
            if sweep is not None and sweep.index == trim.cut:  # else it came twice, or late: nothing is left to do
                self._sweep(stage, sweep, trim.rows, entry)
        elif trim.sliced:
            if not trim.evicts or trim.position <= self.tier.verified_to(self.trim_position):
                self._trim.begin(stage, trim, entry)
        else:
            keeps = self._trim.leaves_tier(trim.position)
            self._trim.set(stage, trim.position, trim.first_index, entry)
            self._queues.trim(stage, trim.position, highest(trim.queues), keeps=keeps)
            self._index.trim(stage, trim.position)

    def _sweep(self, stage: Stage, sweep: Sweep, rows_max: int, entry: Entry) -> None:
        """Carries out the next slice of a sweep (a cut of the log's beginning): first of the queues, then of the
        index."""
        if sweep.family == CQ:
            keeps = sweep.evicts or self._trim.leaves_tier(sweep.position)
            at = self._queues.trim(stage, sweep.position, sweep.queues, sweep.at, rows_max, keeps=keeps)
            self._trim.go_on(stage, INDEX if at is None else CQ, at or keys.FIRST)
            return
        at = self._index.trim_slice(stage, sweep.position, sweep.at, rows_max)
        if at is None:
            self._trim.end(stage, entry)
        else:
            self._trim.go_on(stage, INDEX, at)

    # -- commands

    def _apply_commands(self, stage: Stage, run: list[Command]) -> list[CommandResult]:
        return [self._apply_command(stage, command) for command in run]

    def _apply_command(self, stage: Stage, command: Command) -> CommandResult:
        name, *arguments = command
        known = _COMMANDS.get(name) if isinstance(name, str) else None
        if known is None:
            raise InvariantViolationError(f"unknown command {name!r}: was it written by a newer RaftMQ?")
        method, count = known
        if len(arguments) != count:
            return CommandResult(False, "invalid", f"{name} takes {count} arguments, not {len(arguments)}")
        try:
            return method(self, stage, *arguments)
        except InvalidCommandError as error:
            return CommandResult(False, "invalid", str(error))

    def _create_topic(self, stage: Stage, config: Any, if_absent: Any) -> CommandResult:
        stamp = self._stamp if self._staged_level >= commands.CHANGES_LEVEL else None
        return self._topics.create(stage, config, if_absent, stamp)

    def _delete_topic(self, stage: Stage, name: Any) -> CommandResult:
        result = self._topics.delete(stage, name)
        if result.ok:
            self._slices.begin_topic(stage, result.value.id, self.stored_queues(result.value))
        return result

    def _put_group(self, stage: Stage, config: Any, if_absent: Any) -> CommandResult:
        counts = self._staged_level >= commands.SETTINGS_LEVEL
        return self._groups.put(stage, config, if_absent, broadcasts_count=counts)

    def _delete_group(self, stage: Stage, name: Any, clean_offsets: Any) -> CommandResult:
        clean = commands.checked_bool(clean_offsets, "clean_offsets")
        result = self._groups.delete(stage, name)
        if result.ok:
            self._slices.begin_group(stage, name, offsets=clean)
        return result

    def _subscribe(self, stage: Stage, group: Any, subscriptions: Any) -> CommandResult:
        return self._groups.subscribe(stage, group, subscriptions)

    def _commit_offsets(self, stage: Stage, rows: Any) -> CommandResult:
        return self._offsets.commit(stage, rows, self._topics, self._resets)

    def _end_sessions(self, stage: Stage, producer_ids: Any) -> CommandResult:
        return self._dedup.end(stage, producer_ids)

    def _expire(self, stage: Stage, before_ms: Any) -> CommandResult:
        self._slices.begin_expire(stage, commands.checked_int(before_ms, "before_ms", 0, keys.U64_MAX))
        return commands.done()

    def _acknowledge(self, stage: Stage, index: Any) -> CommandResult:
        return self._members.acknowledge(stage, index)

    def _finalize(self, stage: Stage, level: Any) -> CommandResult:
        level = commands.checked_int(level, "level", BASELINE, keys.U32_MAX)
        if level > self._known_level:
            raise InvariantViolationError("\n".join(why_above("the log", level, self._known_level)))
        if level > self._staged_level:
            self._staged_level = level
            stage.put(META, keys.LEVEL_KEY, keys.U32.pack(level))
        return commands.done(self._staged_level)

    def _lock_queues(
        self, stage: Stage, group: Any, client_id: Any, now_ms: Any, expires_ms: Any, queues: Any, user: Any = NOBODY
    ) -> CommandResult:
        if not self._groups.exists(commands.checked_str(group, "group name")):
            return commands.not_found(f"no group {group!r}")
        return self._locks.lock(stage, group, client_id, now_ms, expires_ms, queues, self._topics, user)

    def _lock_queues_of(
        self, stage: Stage, user: Any, group: Any, client_id: Any, now_ms: Any, expires_ms: Any, queues: Any
    ) -> CommandResult:
        return self._lock_queues(stage, group, client_id, now_ms, expires_ms, queues, checked_user(user))

    def _unlock_queues(
        self, stage: Stage, group: Any, client_id: Any, queues: Any, user: Any = NOBODY
    ) -> CommandResult:
        return self._locks.unlock(stage, group, client_id, queues, user)

    def _unlock_queues_of(self, stage: Stage, user: Any, group: Any, client_id: Any, queues: Any) -> CommandResult:
        return self._unlock_queues(stage, group, client_id, queues, checked_user(user))

    def _reset_offsets(self, stage: Stage, group: Any, now_ms: Any, rows: Any) -> CommandResult:
        if not self._groups.exists(commands.checked_str(group, "group name")):
            return commands.not_found(f"no group {group!r}")
        reset = self._resets.reset(stage, group, now_ms, rows, self._topics)
        for queue, offset in reset:
            self._offsets.put(stage, group, queue, offset)
        return commands.done(len(reset))

    def _commit_write(self, stage: Stage, name: Any, write: Any, now_ms: Any, winners: Any) -> CommandResult:
        return self.writes.commit(stage, name, write, now_ms, winners)

    def _tier_state(self, stage: Stage, base: Any, state: Any, term: Any, span: Any, parts: Any) -> CommandResult:
        # A TRIM is alone in its batch, so what is written says where the log begins.
        begins = (self._trim.mark.position, self._trim.kept.position)
        return self.tier.move(stage, base, state, term, span, parts, *begins)


_COMMANDS: dict[str, tuple[Callable[..., CommandResult], int]] = {
    commands.CREATE_TOPIC: (BrokerState._create_topic, 2),
    commands.DELETE_TOPIC: (BrokerState._delete_topic, 1),
    commands.PUT_GROUP: (BrokerState._put_group, 2),
    commands.DELETE_GROUP: (BrokerState._delete_group, 2),
    commands.SUBSCRIBE: (BrokerState._subscribe, 2),
    commands.COMMIT_OFFSETS: (BrokerState._commit_offsets, 1),
    commands.END_SESSIONS: (BrokerState._end_sessions, 1),
    commands.EXPIRE: (BrokerState._expire, 1),
    commands.ACKNOWLEDGE: (BrokerState._acknowledge, 1),
    commands.FINALIZE: (BrokerState._finalize, 1),
    commands.LOCK_QUEUES: (BrokerState._lock_queues, 5),
    commands.UNLOCK_QUEUES: (BrokerState._unlock_queues, 3),
    commands.LOCK_QUEUES_OF: (BrokerState._lock_queues_of, 6),
    commands.UNLOCK_QUEUES_OF: (BrokerState._unlock_queues_of, 4),
    commands.RESET_OFFSETS: (BrokerState._reset_offsets, 3),
    commands.END_RESETS: (lambda state, *rest: state._resets.end(*rest), 2),
    commands.DELIVER_TIMERS: (lambda state, *rest: state.timers.remove(*rest, delivered=True), 1),
    commands.DROP_TIMERS: (lambda state, *rest: state.timers.remove(*rest, delivered=False), 1),
    commands.END_HALVES: (lambda state, *rest: state.halves.end(*rest), 1),
    commands.CHECK_HALVES: (lambda state, *rest: state.halves.check(*rest), 2),
    commands.OWN_HALVES: (lambda state, *rest: state.halves.own(*rest), 1),
    commands.RECALL_TIMER: (lambda state, *rest: state.timers.recall(*rest), 3),
    commands.TIER_STATE: (BrokerState._tier_state, 5),
    commands.OPEN_ATTEMPT: (lambda state, *rest: state.writes.open(*rest), 3),
    commands.COMMIT_WRITE: (BrokerState._commit_write, 4),
    commands.DISCARD_ATTEMPTS: (lambda state, *rest: state.writes.discard(*rest), 1),
    commands.DROP_STAGED: (lambda state, *rest: state.timers.drop_staged(*rest), 2),
    commands.FORGET_WRITE: (lambda state, *rest: state.writes.forget(*rest), 1),
    commands.SET_CONFIG: (lambda state, *rest: state.settings.set(*rest), 5),
    commands.SET_MAINTENANCE: (lambda state, *rest: state.settings.maintain(*rest), 4),
    commands.CREATE_USER: (lambda state, *rest: state.access.create_user(*rest), 7),
    commands.CHANGE_USER: (lambda state, *rest: state.access.change_user(*rest), 3),
    commands.REMOVE_USER: (lambda state, *rest: state.access.remove_user(*rest), 2),
    commands.SET_RULES: (lambda state, *rest: state.access.set_rules(*rest), 3),
    commands.REMOVE_RULES: (lambda state, *rest: state.access.remove_rules(*rest), 4),
    commands.PUT_TOKEN: (lambda state, *rest: state.access.put_token(*rest), 5),
    commands.REMOVE_TOKEN: (lambda state, *rest: state.access.remove_token(*rest), 2),
    commands.SET_AUTH_MODE: (lambda state, *rest: state.access.set_mode(*rest), 2),
    commands.SET_AUTH_KEY: (lambda state, *rest: state.access.set_key(*rest), 2),
    commands.ROTATE_AUTH_KEY: (lambda state, *rest: state.access.rotate_key(*rest), 2),
    commands.RESEAL_USER: (lambda state, *rest: state.access.reseal(*rest), 5),
}
"""The commands: name -> (method of BrokerState, number of arguments)."""


def _load_mark(kv: KV) -> AppliedMark:
    row = kv.get(META, keys.APPLIED_KEY)
    return NOTHING_APPLIED if row is None else AppliedMark(*keys.APPLIED.unpack(row))
