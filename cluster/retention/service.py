"""Retention of one node: proposes TRIMs while the node leads, and removes the node's own files below them.

Every `every_ms` a lane reads disk usage, checkpoints and rows (retention_worker.py). If the node leads, it proposes a
TRIM, which every node applies at the same entry. From then on, no node reads the messages below it from its own log;
with `tier.evict` they are read from the tier. Each node then removes its files on its own, one every `delete_gap_ms`.
It removes only files that lie below the last TRIM that its own older checkpoint includes and below every lease, and
never the newest file. Whichever checkpoint the node is opened with next therefore needs none of the removed files.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from cluster.config.config import Config
from cluster.config.storage_sections import RetentionSection, TierSection
from cluster.retention.carry_forward import Carrier
from cluster.retention.file_removal import FileRemoval
from cluster.retention.metrics import RetentionMetrics
from cluster.retention.pinned_messages import Gather, PinAlarm, ReadIntact, Slice
from cluster.retention.policy import TrimDecision
from cluster.retention.retention_worker import (
    CHECKPOINT,
    HeldCut,
    RemovedLogFiles,
    RemoveLogFiles,
    RetentionLane,
    SearchPlaces,
    Survey,
    SurveyAsk,
)
from cluster.retention.sweeps import Remover, Sweeper
from cluster.retention.tier_policy import TierDecision
from cluster.retention.views import LeaseView, RetentionView
from cluster.runtime.awaited import Question, Steps, carry_out
from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from cluster.runtime.lanes import StartedLane
from cluster.runtime.read_leases import Leases
from cluster.runtime.service_lifecycle import AppliedRun, Part
from cluster.state.node_storage import NodeStorage
from raftlog.errors import NotLeaderError, OutOfRangeError, ProposalDroppedError
from raftlog.types import EntryId, EntryType, Role
from statemachine.trim import RemoveRows, Trim, decode

logger = logging.getLogger(__name__)

CONSUMERS_EVERY_MS = 60_000
"""Milliseconds between two searches for groups that are about to lose messages."""
OLDER = "the older checkpoint"
UNREAD = Code("unconsumed_messages_expire", "warning", "raftmq group list")


class Ran(NamedTuple):
    """The outcome of `Retention.run`."""

    decision: TrimDecision
    entry: EntryId | None
    """The TRIM that was proposed; None after a dry run, if there was nothing to give up, or if it could not be
    proposed."""
    queues: int = 0
    """The number of queues that also lose messages, because their topic has a shorter retention time of its own or is
    above its quota."""


class Retention:
    """The retention of one node. Event loop only, except for its lane."""

    def __init__(
        self,
        context: NodeContext,
        storage: NodeStorage,
        leases: Leases,
        *,
        metrics: RetentionMetrics,
        writes_open: Callable[[], bool],
        read_intact: ReadIntact,
        carries: Callable[[Callable[[Gather], Question[Slice]], Callable[[], None]], Carrier] | None = None,
        tier_known: Callable[[], bool] = lambda: True,
    ) -> None:
        """`writes_open()` returns True if this node leads and accepts writes. `read_intact` reads waiting messages, on
        the lane. `carries` makes the Carrier; without it, waiting messages stay where they are. `tier_known()` returns
        True once the store is known to be the one that holds the evicted segments; nothing is evicted before."""
        directory, state = storage.directory, storage.state
        self.leases = leases
        self._rules = rules = context.config.retention
        self._raw, self._state, self._log = context.raw, state, directory.log
        self._checkpointer = storage.checkpointer
        self._clock, self._loop, self._alarms, self._metrics = context.clock, context.loop, context.alarms, metrics
        self._writes_open = writes_open
        self._sweeper = Sweeper(context, state, self._leads)
        self._remover = Remover(context, state, self._leads)
        self._pin_alarm = PinAlarm(context.alarms, state, directory.log.segment_size)
        self._wake = context.wake
        self._tiered = bool(context.config.tier.url)
        self._evicts = context.config.tier.evict and self._tiered
        self._tier_known = tier_known
        self._lane = RetentionLane(
            context.fs,
            directory.path,
            directory.log,
            state,
            storage.checkpointer.checkpoints,
            rules,
            read_intact=read_intact,
            tier=context.config.tier if context.config.tier.url else None,
        )
        self._runner: StartedLane[SurveyAsk | RemoveLogFiles | Gather] = StartedLane(
            lambda: context.environment.runner("retention", self._lane, context.loop, self._on_done, context.fail)
        )
        self._carrier = None if carries is None else carries(self._job, self._soon)
        self._looking = False
        self._due_ms = 0
        self._consumers_due_ms = 0
        self._asked: list[asyncio.Future[Ran | None]] = []
        self._asked_first: list[asyncio.Future[Ran | None]] = []
        self._waiters: set[asyncio.Future[Ran | None]] = set()
        """The callers of `run` that have no answer yet: those in `_asked` and `_asked_first`, and those for which a run
        is in progress."""
        self._jobs: deque[Callable[[Any], None]] = deque()
        """The callbacks of the jobs that the lane has not answered yet, in order."""
        self._proposed = EntryId(0, -1)
        self._more = False
        self._found: Survey | None = None
        self._places = SearchPlaces()
        """The searches of the next run begin here. A dry run, and a run that finds queues but proposes no TRIM of them,
        move no place, so that the next run finds the same queues again."""
        self._marks = [state.trim_mark]
        """Marks of TRIMs, ascending by index. With them `_known_to` finds the position at which the log begins for a
        checkpoint."""
        self._files = FileRemoval(context, self._job, metrics, self._changed, rules)
        self._blocked = ""

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="retention",
            start=self.start,
            close=self.close,
            tick=self.tick,
            applied=self.on_applied,
            reload=self._reload,
            metrics=(self._metrics,),
        )

    def _reload(self, config: Config) -> None:
        self.reload(config.retention)
        self.reload_tier(config.tier)

    def reload_tier(self, section: TierSection) -> None:
        """Takes new limits of the tier. From the next TRIM on they decide whether trimmed log stays in the tier, and
        for how long. Has no effect without a tier."""
        self._evicts = section.evict and self._tiered
        self._lane.reload_tier(section)

    def start(self) -> None:
        """Starts the lane; the first run is after `every_ms`."""
        self._due_ms = self._clock.monotonic_ms() + self._rules.every_ms
        self._runner.start()

    def reload(self, rules: RetentionSection) -> None:
        """Applies new rules and makes the next run due at once."""
        self._rules = rules
        self._lane.reload(rules)
        self._files.reload(rules)
        self._due_ms = 0

    async def close(self) -> None:
        """Cancels the callers of `run`, and returns when the lane has finished its present job. Files that are left are
        removed after the next start."""
        for waiter in list(self._waiters):
            waiter.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._runner.close)

    # --- by the clock ------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Starts the next run of retention when it is due, and continues removals. Called several times a second;
        cheap."""
        self._files.tick(now_ms)
        self._sweeper.go_on()
        self._remover.go_on()
        if self._looking:
            return
        if now_ms >= self._due_ms or (self._settled() and (self._asked or self._more)):
            carry_out(self._look(now_ms))
        elif self._asked_first:
            carry_out(self._rehearse())

    def _settled(self) -> bool:
        """Returns True if the TRIM that this node proposed is applied, or its term is over, and no sweep is under
        way."""
        decided = self._raw.applied_index >= self._proposed.index or self._raw.term != self._proposed.term
        return decided and not self._sweeper.busy

    def _leads(self) -> bool:
        return self._raw.role is Role.LEADER and self._writes_open()

    def _look(self, now_ms: int) -> Steps[None]:
        """Runs retention once: the lane finds what may be deleted, the leader proposes it, and this node deletes the
        files below what is already trimmed."""
        self._more = False
        self._due_ms = now_ms + self._rules.every_ms
        consumers = now_ms >= self._consumers_due_ms
        if consumers:
            self._consumers_due_ms = now_ms + CONSUMERS_EVERY_MS
        waiters: list[asyncio.Future[Ran | None]] = []
        # While a proposed TRIM is not applied, callers wait for it and for the run after it.
        if self._settled() or not self._leads():
            waiters, self._asked = self._asked, []
        hour = datetime.fromtimestamp(self._clock.wall_ms() / 1000).hour  # noqa: DTZ006 - the operator's day
        self._found = found = yield from self._survey(hour, asked=bool(waiters), consumers=consumers)
        self._pin_alarm.look(self._clock.monotonic_ms(), found.pin, self._held_bytes(), self._carry_held_by())
        if found.warning is not None:
            self._alarm(UNREAD, found.warning)
        entry = None
        if found.decision is not None:
            # Only a leader decides: a follower gives up files below an applied TRIM, never by its own rules.
            entry = self._trim(found, found.decision)
            self._carry(found.held)
        elif self._alarms.raised(UNREAD) and not self._leads():
            self._alarms.clear(UNREAD)  # only the leader raises this alarm
        _answer(waiters, found, entry)
        self._let_go(found)
        self._changed()

    def _rehearse(self) -> Steps[None]:
        """Answers callers of a dry run with what would be deleted, and deletes nothing. The regular run keeps its own
        schedule."""
        waiters, self._asked_first = self._asked_first, []
        found = yield from self._survey(0, asked=True, consumers=False)
        _answer(waiters, found, None)

    def _survey(self, hour: int, *, asked: bool, consumers: bool) -> Steps[Survey]:
        self._looking = True
        leads = self._leads() and self._settled()
        now = self._raw.log_time_ms() if leads else 0
        ask = SurveyAsk(leads, now, hour, self._freed_bytes(), asked, consumers, self._places)
        found: Survey = yield self._job(ask)
        self._looking = False
        return found

    def _job(self, job: SurveyAsk | RemoveLogFiles | Gather) -> Question[Any]:
        """Returns a question (`cluster.runtime.awaited.Question`) that gives the lane this job and is answered with the
        lane's result. The lane answers its jobs in order."""

        def ask(done: Callable[[Any], None]) -> None:
            self._jobs.append(done)
            self._runner.submit(job)

        return ask

    def _on_done(self, answers: list[Survey | RemovedLogFiles | Slice]) -> None:
        for answer in answers:
            self._jobs.popleft()(answer)

    def _freed_bytes(self) -> int:
        """Returns the number of bytes of log that lie below the TRIM or were given up, but are still on this node's
        disk. A file that was given up counts as a whole segment."""
        return max(0, self._state.trim_position - self._log.first_position) + self._files.count * self._log.segment_size

    def _soon(self) -> None:
        """Makes the next run due at once."""
        self._due_ms = 0

    def _alarm(self, key: Code, text: str) -> None:
        if text:
            self._alarms.raise_alarm(key, text)
        else:
            self._alarms.clear(key)

    # --- the leader --------------------------------------------------------------------------------------------------

    def _trim(self, found: Survey, decision: TrimDecision) -> EntryId | None:
        """Proposes the TRIM that was decided. Returns the id of its entry; None if there is nothing to remove, or if it
        cannot be proposed now."""
        if decision.held == CHECKPOINT:
            self._want_checkpoint(found)
        if not found.queues:
            self._places = found.places
        # Leadership may have been lost while the lane worked, and at most one TRIM is in flight.
        if not (decision.count or found.queues) or not self._leads() or not self._settled():
            return None
        trim = self._wanted(found, decision)
        # Evicted messages exist only in the tier. If the store was exchanged by mistake, it would have none of them.
        if trim.evicts and not self._tier_known():
            logger.info("nothing is evicted yet: the store of the tier has not shown that it is the right one")
            return None
        try:
            entry = self._sweeper.cut(trim)
        except (NotLeaderError, ProposalDroppedError) as error:
            logger.info("the log is not trimmed now: %s", error)
            return None
        self._proposed, self._more = entry, decision.more or (trim.evicts and bool(found.queues))
        if trim.queues:
            self._places = found.places
        self._wake()
        if trim.evicts:
            logger.info(
                "the log from position %d (index %d) on is to stay here, what is below in the tier: %s",
                trim.position,
                trim.first_index,
                trim.reason,
            )
            return entry
        logger.info(
            "the log is to begin at position %d (index %d): %s; %d segments and %d queues by their topics' own limits",
            trim.position,
            trim.first_index,
            trim.reason,
            decision.count,
            len(found.queues),
        )
        for (group, topic), count in sorted(found.unread.items()):
            logger.warning(
                "group %s had not consumed %d of the messages that retention removes from topic %s", group, count, topic
            )
        self._metrics.unread.inc(sum(found.unread.values()))
        return entry

    def _wanted(self, found: Survey, decision: TrimDecision) -> Trim:
        """Returns the TRIM to propose. A TRIM that evicts names no queues. Queues of topics with a shorter retention
        time then lose their expired messages, for all readers, by the next TRIM."""
        state = self._state
        reason = decision.reason or ("size of topics" if found.by_size else "age of topics")
        if not decision.count or decision.position <= state.trim_position:
            return Trim(*state.kept, reason, tuple(found.queues))
        # An evicting TRIM names no queue: a message must be in the tier before a TRIM says that it is removed.
        if self._evicts:
            return Trim(decision.position, decision.first_index, reason, sliced=True, evicts=True)
        return Trim(decision.position, decision.first_index, reason, tuple(found.queues))

    @property
    def expired_in_tier(self) -> TierDecision | None:
        """The cut of the tier that the last run of retention decided on. None if nothing is to be removed, while a TRIM
        is in progress, or on a node that does not lead."""
        ready = self._found is not None and self._leads() and self._settled()
        return self._found.tier if self._found is not None and ready else None

    def cut(self, trim: Trim) -> bool:
        """Proposes a TRIM that the caller decided. Returns False while another one is in progress, on a node that does
        not lead, or if the proposal is refused."""
        if not self._leads() or not self._settled():
            return False
        try:
            self._proposed = self._sweeper.cut(trim)
        except (NotLeaderError, ProposalDroppedError) as error:
            logger.info("the tier is not trimmed now: %s", error)
            return False
        self._wake()
        return True

    def _carry(self, held: HeldCut | None) -> None:
        """Lets the carrier append waiting messages again, if they prevent a cut (`held`) and carrying frees more than
        it writes."""
        if held is not None and not held.dense and self._carrier is not None:
            self._carrier.carry(held.carry_below)

    def _want_checkpoint(self, found: Survey) -> None:
        """Asks for a checkpoint, if entries were applied since the newest one."""
        if self._state.applied.index > found.newest_index:
            self._checkpointer.want_checkpoint()

    def run(self, *, dry: bool = False) -> asyncio.Future[Ran | None]:
        """Runs retention at once for an operator, whatever the hour. The result is None if this node does not lead (any
        more), and for a `dry` run also while a TRIM is in progress. A dry run proposes nothing."""
        waiter: asyncio.Future[Ran | None] = asyncio.get_running_loop().create_future()
        (self._asked_first if dry else self._asked).append(waiter)
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    # --- every node --------------------------------------------------------------------------------------------------

    def on_applied(self, applied: AppliedRun) -> None:
        """Makes the removal of files due soon after an applied TRIM."""
        for entry in applied.entries:
            if entry.type == EntryType.TRIM:
                trim = decode(entry.payload)
                if isinstance(trim, RemoveRows):
                    continue
                if isinstance(trim, Trim):
                    self._metrics.trimmed.labels(trim.reason).inc()
                    logger.info("TRIM at index %d: to position %d (%s)", entry.index, trim.position, trim.reason)
                self._sweeper.go_on()
                if not self._sweeper.busy:
                    self._due_ms = self._clock.monotonic_ms()
        mark = self._state.trim_mark
        # The TRIM is remembered with its index, because an older checkpoint still needs the log that the TRIM cut off.
        if mark.index > self._marks[-1].index:
            self._marks.append(mark)
            logger.info("the log begins at position %d, as of index %d", mark.position, mark.index)

    def _let_go(self, found: Survey) -> None:
        """Makes the log give up the files that are no longer needed, and queues them for removal."""
        limits = [(self._state.trim_position, ""), (self._known_to(found.checkpoint_index), OLDER)]
        limits += [(lease.position, f"the lease of {lease.holder}") for lease in self.leases.all()[:1]]
        position, self._blocked = min(limits)
        # If only the older checkpoint holds the files, a new checkpoint makes the next run free them.
        if self._blocked == OLDER and self._left()[0]:
            self._want_checkpoint(found)
        # `position` is the lowest of three limits: the TRIM, what the older checkpoint knows, and the lowest lease.
        gone = self._log.trim(position)
        if gone:
            self._raw.trimmed()
            self._files.add(gone)
            self._wake()

    def _known_to(self, index: int) -> int:
        """Returns the position at which the log begins for a state that has applied everything up to `index`. Returns a
        lower position, down to 0, if this node does not remember the TRIM."""
        known = [mark for mark in self._marks if mark.index <= index]
        # Marks above `index` stay for the next calls, with newer checkpoints.
        if known:
            self._marks = [known[-1], *[mark for mark in self._marks if mark.index > index]]
        return known[-1].position if known else 0

    def _left(self) -> tuple[int, int]:
        """Returns (files, bytes) of the log below the TRIM that are not removed yet. A file that was given up counts as
        a whole segment."""
        count, size, at = self._files.count, 0, self._log.first_position
        end = self._state.trim_position
        try:
            while at < end and (span := self._log.segment_at(at)).sealed and span.end_position <= end:
                count, size, at = count + 1, size + span.end_position - at, span.end_position
        except OutOfRangeError:
            pass  # A conflict has just cut the end of the log.
        return count, size + self._files.count * self._log.segment_size

    def _held_by(self, files: int) -> str:
        if files == self._files.count:
            return ""  # the files are about to be removed
        return self._blocked or "the newest file always stays"

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Sets the metrics of the log, of the files that are left, and of the lowest waiting message."""
        files, size = self._left()
        state, end = self._state, self._log.tail.end_position
        self._metrics.log(state.trim_position, end - self._log.first_position, files, size)
        pin = self._found.pin if self._found else None
        if pin is None:
            self._metrics.pinned(end, 0, 0)
        else:
            age_ms = max(0, state.applied_mark.timestamp_ms - (pin.stored_ms or state.applied_mark.timestamp_ms))
            self._metrics.pinned(pin.position, age_ms, self._held_bytes())

    def _held_bytes(self) -> int:
        """Returns the bytes of log that retention would remove, according to its last run, if no message waited there;
        0 on a node that does not lead."""
        found = self._found
        if found is None or found.held is None or found.decision is None or not self._leads():
            return 0
        return max(0, found.held.position - max(found.decision.position, self._state.trim_position))

    def _carry_held_by(self) -> str:
        held = self._found.held if self._found else None
        if held is None or not self._leads():
            return ""
        if held.dense:
            return "more than half of the log waits: storing it again would take more than it frees"
        return ""

    def view(self, node: int) -> RetentionView:
        """Shows where the log begins, what holds it there, and which files are left."""
        state, log, rules, mark = self._state, self._log, self._rules, self._state.trim_mark
        files, size = self._left()
        decision = self._found.decision if self._found else None
        pin = self._found.pin if self._found else None
        return RetentionView(
            node=node,
            leader=self._raw.leader_id or None,
            trim_position=mark.position,
            trim_index=mark.first_index,
            trimmed_at_index=mark.index if mark.index >= 0 else None,
            trimmed_ms=mark.timestamp_ms if mark.index >= 0 else None,
            first_position=log.first_position,
            first_index=log.first_index,
            end_position=log.tail.end_position,
            applied_index=state.applied.index,
            files_left=files,
            bytes_left=size,
            files_held_by=self._held_by(files),
            log_held_by=decision.held if decision and self._leads() else "",
            pinned_position=pin.position if pin else None,
            pinned_since_ms=pin.stored_ms if pin else None,
            sweeping=state.sweep is not None,
            pinned_timers=state.timers.counts.pending,
            pinned_halves=state.halves.pending.count,
            pinned_message_bytes=(
                state.timers.counts.pending_bytes + state.halves.pending.bytes + state.writes.left_bytes
            ),
            pinned_log_bytes=self._held_bytes(),
            carrying=self._carrier is not None and self._carrier.busy,
            carry_held_by=self._carry_held_by(),
            disk_used_percent=round(self._found.disk.percent_now, 1) if self._found else None,
            keep_ms=rules.keep_ms,
            bytes_max=rules.bytes_max,
            delete_when=rules.delete_when,
            protect_unconsumed=rules.protect_unconsumed,
            leases=[LeaseView(holder=one.holder, position=one.position) for one in self.leases.all()],
        )


def _answer(waiters: list[asyncio.Future[Ran | None]], found: Survey, entry: EntryId | None) -> None:
    ran = Ran(found.decision, entry, len(found.queues)) if found.decision is not None else None
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(ran)
