"""Commits consumer offsets, and returns them and the bounds of queues. Leader only. Consumers jump to the offsets that
are returned here, so these offsets must never come from stale state.

Commits take effect in the order in which they came (see `cluster.replication.offset_order`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.evicted.evicted_time_search import EvictedBounds, earliest_store_ms, offset_by_time
from cluster.broker.name_rules import check_counted, check_queue, group_named, topic_named
from cluster.broker.refusal import Reason, Refused
from cluster.broker.sends.held_sends import is_message
from cluster.broker.services import Services
from cluster.replication.outcome import Done, Outcome, ProposeResult
from statemachine.commands import CommandResult, not_found
from statemachine.consuming.consumer_offsets import Commit, CommitOffsets
from statemachine.payload import SESSION_ROW, SessionRows

if TYPE_CHECKING:
    from cluster.replication.send_identity import SessionIds
    from statemachine.topics.topics import TopicConfig


YOUNG_MS = 1_800_000
"""The age in milliseconds below which a queue's first message counts as young. A new group reads such a queue from its
beginning. So a user who sends to a new topic and then starts the consumer misses nothing. Older queues are read from
the place that the consumer asks for."""


class Offsets:
    """Commits and looks up the offsets of all groups. Before callers ask for offsets or bounds of queues, they complete
    a ReadIndex round."""

    def __init__(self, services: Services, evicted: EvictedBounds | None = None) -> None:
        """`evicted`: access to evicted messages; None if this node has no tier."""
        self._services = services
        self._old = evicted
        self._named = NamedCommits(services)

    def stored_or_zero(self, group: str, topic: str, queue_id: int, *, zero_if_whole: bool) -> int | None:
        """Returns the committed offset. If there is none, returns 0 if `zero_if_whole` is True and the queue still has
        its first message and that is younger than YOUNG_MS, else None. Returns None too if there is no such queue."""
        state = self._services.state
        config = state.topics.get(topic)
        if config is None or not 0 <= queue_id < state.stored_queues(config):
            return None
        offset = state.offset(group, config.id, queue_id)
        if offset is None and zero_if_whole:
            return 0 if self._is_young(config.id, queue_id) else None
        return offset

    def _is_young(self, topic_id: int, queue_id: int) -> bool:
        """Returns True if the queue still has its first message, and that was stored within the last YOUNG_MS."""
        state = self._services.state
        if first_offset(state, topic_id, queue_id) != 0:
            return False
        # If the message is only in the tier, this returns no message, or a later one.
        first = state.fetch(topic_id, queue_id, 0, 1)
        since_ms = self._services.log_time_ms() - YOUNG_MS
        return bool(first) and first[0].queue_offset == 0 and first[0].store_time_ms > since_ms

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        name: CommitId | None,
        done: Done,
        counted_in: str | None = None,
    ) -> None:
        """Commits an offset, and calls `done` when the commit is applied or its outcome is unknown. A result that is
        not ok means that the topic was deleted in the meantime. `name` identifies the commit, in case the client
        repeats it; None for a commit without identity. `counted_in`: the identity of the topic in which the offset
        counts; None if the client does not say. Raises Refused if the group, topic or queue does not exist, if the
        offset does not count in the present topic, or if the commit comes too late (`NamedCommits.commit`)."""
        config = self._committable(group, topic, queue_id, offset, counted_in)
        row = group, config.id, queue_id, offset
        if name is not None:
            self._named.commit(row, name, done)
        else:
            self._services.propose([CommitOffsets([row])], done)

    def commit_later(self, group: str, topic: str, queue_id: int, offset: int, counted_in: str | None = None) -> None:
        """Commits an offset together with other offsets in one entry. The caller is not told of the outcome. Raises
        Refused in the same cases as `commit`, except that no commit comes too late."""
        config = self._committable(group, topic, queue_id, offset, counted_in)
        self._services.commit_offset_later(group, config.id, queue_id, offset)

    def _committable(self, group: str, topic: str, queue_id: int, offset: int, counted_in: str | None) -> TopicConfig:
        group_named(self._services.state, group)
        if not self._services.knows_group(group):
            raise Refused(Reason.UNAVAILABLE, f"consumer group {group} is being deleted; try again")
        config = self._queue(topic, queue_id)
        check_counted(self._services, config, counted_in, offset)
        return config

    # --- bounds ------------------------------------------------------------------------------------------------------

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset behind the queue's last message. Raises Refused if there is no such queue."""
        return self._services.state.max_offset(self._queue(topic, queue_id).id, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset of the queue's first message, on this node or in the tier. Raises Refused if there is no
        such queue."""
        return first_offset(self._services.state, self._queue(topic, queue_id).id, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, done: Callable[[int | Refused], None], *, upper: bool
    ) -> None:
        """Calls `done` with the first offset stored at or after the time, or if `upper` is True with the last one
        stored at or before it. Messages in the tier count too. Raises Refused if there is no such queue. Passes a
        Refused to `done` if the tier is needed and cannot be read."""
        queue = self._queue(topic, queue_id).id, queue_id
        offset_by_time(self._services.state, self._old, queue, time_ms, done, upper=upper)

    def earliest_store_ms(self, topic: str, queue_id: int, done: Callable[[int | Refused | None], None]) -> None:
        """Calls `done` with the store time in milliseconds of the queue's first message, on this node or in the tier;
        with None if the queue is empty. Raises Refused if there is no such queue. Passes a Refused to `done` if the
        tier is needed and cannot be read."""
        earliest_store_ms(self._services.state, self._old, (self._queue(topic, queue_id).id, queue_id), done)

    def _queue(self, topic: str, queue_id: int) -> TopicConfig:
        """Returns the topic. Raises Refused if there is none, or if it never had that queue."""
        config = topic_named(self._services.state, topic)
        check_queue(self._services.state, config, queue_id)
        return config


# The code below commits offsets that carry an identity. Such a commit is carried out once, however often it is
# repeated.
# The log records each commit in a session of its sender, like a producer's session, so the next leader knows it too.
# With each commit a sender states which of its older commits are settled. A settled commit that arrives late is
# refused, so it moves no offset back.

SENDERS_MAX = 65_536
UNSETTLED_MAX = 4096
"""The most unsettled commits of one sender. A consumer has at most one for each of its queues."""


class CommitId(NamedTuple):
    """The identity of a commit: the session of its sender and a sequence number in it."""

    session: SessionIds
    sequence: int
    low: int
    """The sequence number below which the sender has settled all its commits."""


class _Sender:
    __slots__ = ("earlier_max", "low", "proposed")

    def __init__(self, earlier_max: int) -> None:
        self.low = 0
        self.proposed: dict[int, int] = {}
        """Sequence number -> topic id of each commit that this node has proposed; numbers below `low` are removed."""
        self.earlier_max = earlier_max
        """The highest sequence number in the sessions that the sender may have used earlier: before it had a user, or
        below OWNERS_LEVEL."""


class NamedCommits:
    """Proposes commits that carry an identity, each of them once. It remembers those that this node has proposed while
    it leads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._senders: OrderedDict[bytes, _Sender] = OrderedDict()

    def commit(self, row: Commit, name: CommitId, done: Done) -> None:
        """Proposes the commit `row`, unless a commit with the same identity to the same topic was proposed before.
        Calls `done` with the outcome in both cases. Raises Refused (INVALID) if the sender has settled this commit, or
        has UNSETTLED_MAX commits that are not settled."""
        topic_id = row[1]
        sender = self._sender(name)
        stored = self._stored(name.session.own, name.sequence)
        if stored is None and name.sequence <= sender.earlier_max:
            for session in name.session[1:]:
                if session and self._is_earlier(session, row, name, done):
                    return
        first = sender.proposed.get(name.sequence) if stored is None else stored
        if first not in (None, topic_id):  # two different commits have the same identity
            self._services.propose([CommitOffsets([row])], done)
        elif stored is not None:
            done(self._done(row))
        elif first is not None:
            self._wait_for_first(row, name.session.own, name.sequence, done)
        else:
            self._propose(row, name, done)

    def _is_earlier(self, session: bytes, row: Commit, name: CommitId, done: Done) -> bool:
        """Returns True if the commit was stored or proposed in `session`, which its sender used earlier. `done` was or
        will then be called. Raises Refused if the commit comes too late."""
        stored = self._stored(session, name.sequence)
        if stored == row[1]:
            done(self._done(row))
            return True
        sender = self._senders.get(session)
        if stored is None and sender is not None and sender.proposed.get(name.sequence) == row[1]:
            self._wait_for_first(row, session, name.sequence, done)
            return True
        if session is name.session.before and stored is None:  # a session without a user may belong to another client
            _refuse_late(name.sequence, self._low(session))
        return False

    def _low(self, session: bytes) -> int:
        found, sender = self._services.state.session(session), self._senders.get(session)
        return max(found.low_sequence if found is not None else 0, sender.low if sender is not None else 0)

    def _sender(self, name: CommitId) -> _Sender:
        own = name.session.own
        sender = self._senders.get(own)
        if sender is None:
            earlier = [self._highest(session) for session in name.session[1:] if session]
            sender = self._senders[own] = _Sender(max(earlier, default=0))
        self._senders.move_to_end(own)
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)
        low = max(name.low, self._low(own))
        if low > sender.low:
            sender.low = low
            sender.proposed = {sequence: topic_id for sequence, topic_id in sender.proposed.items() if sequence >= low}
        _refuse_late(name.sequence, low)
        if len(sender.proposed) >= UNSETTLED_MAX:
            raise Refused(Reason.INVALID, f"more than {UNSETTLED_MAX} commits are not settled")
        return sender

    def _highest(self, session: bytes) -> int:
        sender = self._senders.get(session)
        proposed = max(sender.proposed, default=0) if sender is not None else 0
        return max(proposed, self._services.state.max_sequence(session))

    def _stored(self, session: bytes, sequence: int) -> int | None:
        """Returns the topic id of the commit that is stored under this sequence number; None if there is none."""
        found = self._services.state.session(session)
        place = found.find(sequence) if found is not None else None
        return None if place is None or is_message(place) else place[0]

    def _done(self, row: Commit) -> ProposeResult:
        exists = row[1] in self._services.state.topics_by_id
        result = CommandResult(True, "", None) if exists else not_found("topic")
        return ProposeResult(Outcome.OK, [result], None, "")

    def _propose(self, row: Commit, name: CommitId, done: Done) -> None:
        own = name.session.own
        self._senders[own].proposed[name.sequence] = row[1]
        place = SESSION_ROW.pack(name.sequence, row[1], row[2], row[3], 0)
        session = SessionRows(own, name.low, name.sequence, place)
        self._services.propose([CommitOffsets([row])], done, session)

    def _wait_for_first(self, row: Commit, session: bytes, sequence: int, done: Done) -> None:
        """Waits for the outcome of an earlier commit with the same identity, which is in flight or was lost with an
        earlier term. Proposes an empty entry behind the earlier one, and calls `done` when the empty entry is
        decided."""

        def decided(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                done(ProposeResult(Outcome.UNKNOWN, [], None, "the same commit arrived before, and is undecided"))
            elif self._stored(session, sequence) is not None:
                done(self._done(row))
            else:
                remark = "an earlier attempt was lost with its leader; nothing was done, try again"
                sender = self._senders.get(session)
                if sender is not None:
                    sender.proposed.pop(sequence, None)
                done(ProposeResult(Outcome.FAIL, [], None, remark))

        self._services.propose([], decided)


def _refuse_late(sequence: int, low: int) -> None:
    if sequence < low:
        remark = f"commit {sequence} is too late: its sender has settled all commits below {low}"
        raise Refused(Reason.INVALID, remark)
