"""Runs retention's work off the event loop: reads disk usage, checkpoints and rows, and removes files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cluster.config.storage_sections import RetentionSection, TierSection
from cluster.retention import backlog_eviction, pinned_messages, policy, unconsumed_messages
from cluster.retention.pinned_messages import Gather, Pin, ReadIntact, Slice
from cluster.retention.policy import UNKNOWN_DISK, DiskFact, Floor, SegmentFact, TrimDecision, TrimFacts, decide
from cluster.retention.tier_policy import TierDecision, facts_of
from cluster.retention.tier_policy import decide as decide_tier
from cluster.runtime.lanes import NeverIdle
from cluster.state.checkpoints import Checkpoint, Checkpoints
from raftlog.errors import OutOfRangeError, StorageError
from raftlog.storage.files.fs import FileSystem
from raftlog.storage.log.segmented_log import SegmentedLog
from statemachine.broker_state import NOTHING_APPLIED, AppliedMark, BrokerState
from statemachine.trim import QueueMin

logger = logging.getLogger(__name__)

CHECKPOINT = "the older checkpoint of the leader"
"""Names the floor at the end of the log that the leader's older checkpoint includes. The log above this floor is needed
to bring the state up to date again from that checkpoint."""
PINNED = "messages that wait for their time or their transaction"
"""Names the floor of messages that are in no queue yet."""
TIER = "segments that are not verified in the tier"
"""Names the floor while a tier is configured: only segments that the tier holds may go."""


class SearchPlaces(NamedTuple):
    """The places at which the next searches for queues that lose messages begin. Each search is limited, and goes on
    where the last one ended."""

    earlier: policy.QueuePlace | None = None
    """The queue for the search for messages of topics with a shorter retention time; None to begin with the first
    topic."""
    grown: str = ""
    """The topic for the search for topics above their quota; "" for the first one."""


class SurveyAsk(NamedTuple):
    """A job of the lane: look at everything, and decide what to remove if this node leads."""

    leads: bool
    now_ms: int
    """Log time of the look."""
    hour: int
    """Hour of the day at this node, 0 to 23."""
    freed_bytes: int
    """Bytes of files that were given up but not removed yet."""
    asked: bool
    """True if an operator wants expired messages removed now, whatever the hour."""
    consumers: bool
    """True to look for groups that are about to lose messages too."""
    places: SearchPlaces
    """The places at which the searches for queues begin."""


class RemoveLogFiles(NamedTuple):
    """A job of the lane: remove these files, which the log no longer uses."""

    paths: tuple[Path, ...]


class HeldCut(NamedTuple):
    """The cut that retention would make if no waiting message lay below it."""

    position: int
    """Position at which the log would begin after the cut."""
    carry_below: int
    """Waiting messages below this position are to be carried. On a full disk that is one segment at a time, so that
    each segment frees space before the next one takes some."""
    dense: bool
    """True if the waiting messages have more bytes than half of the log. Carrying them would write more than it
    frees."""
    reason: str


class Survey(NamedTuple):
    """The lane's answer to a SurveyAsk."""

    disk: DiskFact
    checkpoint_index: int
    """Applied index of the checkpoint that limits removal: a state made from it knows the TRIMs up to there. -1 for
    none."""
    newest_index: int
    """Applied index of the newest checkpoint."""
    decision: TrimDecision | None
    """The decision of retention; None on a node that does not lead."""
    queues: list[QueueMin]
    """Queues that lose messages because of their topic's own retention time or quota, with their new first offsets."""
    unread: dict[tuple[str, str], int]
    """(group, topic) -> the number of messages that go without having been consumed."""
    warning: str | None
    """The text of the alarm about unconsumed messages, "" for none; None if the look did not search for them."""
    pin: Pin | None = None
    """The lowest waiting message; None if none waits."""
    held: HeldCut | None = None
    """The cut that `pin` prevents, on the leader; None if it prevents none."""
    tier: TierDecision | None = None
    """The segments that leave the tier for good, on the leader; None if there is no tier or no reason to remove any."""
    by_size: bool = False
    """True if messages of `queues` go because their topic keeps more than a quota allows."""
    places: SearchPlaces = SearchPlaces()
    """The places at which the next searches begin, once the messages of `queues` go."""


class RemovedLogFiles(NamedTuple):
    """The lane's answer to RemoveLogFiles."""

    paths: tuple[Path, ...]
    error: str
    """The reason why the files are still there; "" if they are gone."""


class RetentionLane(NeverIdle):
    """Does the jobs of retention on a lane, so that reading rows and files does not block the event loop. An exception
    here stops the node."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        log: SegmentedLog,
        state: BrokerState,
        checkpoints: Checkpoints,
        rules: RetentionSection,
        *,
        read_intact: ReadIntact,
        tier: TierSection | None = None,
    ) -> None:
        """`directory` is DATA. With a `tier`, only segments that the tier holds may go."""
        self._read_intact = read_intact
        self._fs = fs
        self._directory = directory
        self._log = log
        self._state = state
        self._checkpoints = checkpoints
        self._rules = rules
        self._tier = tier
        self._longer = policy.KeptLonger(state)
        self._verified = ""
        """The name of the last checkpoint that was read completely and found sound; "" if there is none."""

    def reload(self, rules: RetentionSection) -> None:
        """Applies new rules for the next look. Any thread."""
        self._rules = rules

    def reload_tier(self, section: TierSection) -> None:
        """Applies new limits of the tier, if there is one. Any thread."""
        if self._tier is not None:
            self._tier = section

    def drain(self, batch: Sequence[SurveyAsk | RemoveLogFiles | Gather]) -> list[Survey | RemovedLogFiles | Slice]:
        """Does the jobs one after the other, and returns one answer for each, in order."""
        return [self._do(job) for job in batch]

    def _do(self, job: SurveyAsk | RemoveLogFiles | Gather) -> Survey | RemovedLogFiles | Slice:
        if isinstance(job, SurveyAsk):
            return self._look(job)
        if isinstance(job, RemoveLogFiles):
            return self._remove(job)
        return pinned_messages.gather(self._state, self._log, job, self._read_intact)

    # --- files -------------------------------------------------------------------------------------------------------

    def _remove(self, job: RemoveLogFiles) -> RemovedLogFiles:
        try:
            self._log.remove_files(list(job.paths))
        except (OSError, StorageError) as error:
            return RemovedLogFiles(job.paths, str(error))
        return RemovedLogFiles(job.paths, "")

    def _disk(self, freed_bytes: int) -> DiskFact:
        try:
            total = self._fs.total_bytes(self._directory)
            return DiskFact(total, total - self._fs.free_bytes(self._directory), freed_bytes)
        except OSError as error:
            logger.warning("the usage of the disk of %s is unknown: %s", self._directory, error)
            return UNKNOWN_DISK

    def _checkpoints_now(self, disk: DiskFact) -> tuple[AppliedMark, AppliedMark]:
        """Returns (the mark of the checkpoint that limits removal, the mark of the newest checkpoint). The older of two
        checkpoints limits removal, because the newest may turn out damaged. On a disk that is nearly full, the newest
        one limits it, once every byte of it was read. A mark is NOTHING_APPLIED if there is no such checkpoint."""
        try:
            found = self._checkpoints.all()
            if not found:
                return NOTHING_APPLIED, NOTHING_APPLIED
            newest = found[0].manifest.mark
            if disk.percent_now > self._rules.disk_force_clean_percent and self._sound(found[0]):
                return newest, newest
            return found[1].manifest.mark if len(found) > 1 else NOTHING_APPLIED, newest
        except OSError as error:
            logger.warning(
                "the checkpoints of %s cannot be read, so no log file is removed: %s", self._directory, error
            )
            return NOTHING_APPLIED, NOTHING_APPLIED

    def _sound(self, checkpoint: Checkpoint) -> bool:
        name = checkpoint.manifest.name
        if self._verified != name and next(self._checkpoints.problems(checkpoint), None) is None:
            self._verified = name
        return self._verified == name

    # --- what is to go -----------------------------------------------------------------------------------------------

    def _look(self, job: SurveyAsk) -> Survey:
        disk = self._disk(job.freed_bytes)
        counts, newest = self._checkpoints_now(disk)
        pin = pinned_messages.lowest(self._state, self._log)
        found = Survey(disk, counts.index, newest.index, None, [], {}, None, pin)
        if not job.leads:
            return found
        state, rules = self._state, self._rules
        floors = [Floor(counts.end_position, CHECKPOINT)]
        if self._tier is not None:
            facts_of_tier = facts_of(state, self._tier, job.now_ms, protect_unconsumed=rules.protect_unconsumed)
            found = found._replace(tier=decide_tier(facts_of_tier, self._tier))
            floors.append(Floor(state.tier.verified_to(state.trim_position), TIER))
        facts = TrimFacts(
            now_ms=job.now_ms,
            hour=job.hour,
            end=state.applied_mark.end_position,
            segments=sealed_segments(self._log, state.trim_position, rules.delete_batch_files + 1),
            disk=disk,
            floors=floors,
            asked=job.asked,
        )
        facts = self._with_longer(facts)
        queues, earlier_at = policy.gone_earlier(state, rules.keep_ms, job.now_ms, job.places.earlier)
        grown, grown_at = backlog_eviction.grown(state, job.places.grown)
        found = found._replace(by_size=bool(grown), places=SearchPlaces(earlier_at, grown_at))
        queues = backlog_eviction.together(queues, grown)
        free = self._with_consumers(job, facts, queues, found)
        wanted = free.decision
        if pin is None or wanted is None or wanted.position <= pin.position or not wanted.count:
            return free
        facts = facts._replace(floors=[*facts.floors, Floor(pin.position, PINNED)])
        below = facts.segments[0].end if "disk" in wanted.reason else wanted.position
        waiting = state.timers.counts.pending_bytes + state.halves.pending.bytes + state.writes.left_bytes
        held = HeldCut(wanted.position, below, waiting * 2 > facts.end - state.trim_position, wanted.reason)
        return self._with_consumers(job, facts, queues, found)._replace(held=held)

    def _with_longer(self, facts: TrimFacts) -> TrimFacts:
        """Returns the facts with the floor of topics that keep their messages longer. Looks at these topics only if a
        segment would go by its age, because that costs one or two seeks per queue."""
        decision = decide(facts, self._rules)
        if "age" not in decision.reason:
            return facts
        first_end = facts.segments[0].end
        longer = self._longer.floor(self._rules.keep_ms, facts.now_ms, first_end, decision.position)
        return facts._replace(kept_longer=longer)

    def _with_consumers(self, job: SurveyAsk, facts: TrimFacts, queues: list[QueueMin], found: Survey) -> Survey:
        """Returns `found` with the decision, and with what it means for groups that have not consumed everything. Looks
        for such groups only if something goes or the job asks for it, because that costs a seek per queue of each
        group."""
        state, rules = self._state, self._rules
        decision = decide(facts, rules)
        goes = decision.count > 0 or bool(queues)
        rows = unconsumed_messages.behind(state) if goes or job.consumers else []
        if rules.protect_unconsumed and goes and (lowest := unconsumed_messages.floor(rows)) is not None:
            decision = decide(facts._replace(floors=[*facts.floors, lowest]), rules)
            queues = unconsumed_messages.within(queues, rows)
        unread = unconsumed_messages.lost(state, rows, decision.position, queues) if decision.count or queues else {}
        warning = self._warning(job, rows, facts.end) if goes or job.consumers else None
        return found._replace(decision=decision, queues=queues, unread=unread, warning=warning)

    def _warning(self, job: SurveyAsk, rows: list[unconsumed_messages.Behind], log_end: int) -> str:
        """Returns the text of the alarm about messages that their groups are about to lose, "" for none. Evicted
        messages stay in the tier; then only messages that leave the tier are lost."""
        if self._tier is not None and self._tier.evict:
            return unconsumed_messages.warning_in_tier(self._state, self._tier, self._rules, job.now_ms)
        return unconsumed_messages.warning(rows, self._rules, job.now_ms, log_end)


def sealed_segments(log: SegmentedLog, position: int, count_max: int) -> list[SegmentFact]:
    """Returns the first sealed segments, at most `count_max`, from `position` or the beginning of the log on, whichever
    is higher."""
    found: list[SegmentFact] = []
    at = max(position, log.first_position)
    try:
        span = log.segment_at(at)
        while span.sealed and len(found) < count_max:
            following = log.segment_at(span.end_position)
            last = following.previous
            found.append(SegmentFact(span.previous.end_position, span.end_position, last.index + 1, last.timestamp_ms))
            span = following
    except OutOfRangeError:
        pass  # The log was trimmed or cut meanwhile; the segments found so far are right.
    return found
