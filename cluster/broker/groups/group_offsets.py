"""Consumer offsets and the bounds of queues. Leader only. Answers here move consumers, so none comes from stale state.

Commits take effect in the order in which they came: `cluster.replication.offset_order`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.evicted.evicted_pulls import first_offset
from cluster.broker.evicted.evicted_time_search import EvictedBounds, earliest_store_ms, offset_by_time
from cluster.broker.name_rules import group_named, topic_named
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Client, Services
from cluster.replication.outcome import Done, Outcome, ProposeResult
from statemachine import commands
from statemachine.payload import SESSION_ROW, SessionRows

if TYPE_CHECKING:
    from statemachine.topics import TopicConfig


RETRY_MS = 100
RETRIES = 30
"""The number of tries, and the milliseconds between them, while no leader confirms a query: longer than a failover
takes, shorter than a client waits."""
YOUNG_MS = 1_800_000
"""A new group reads a whole queue if its first message is younger than this, in milliseconds: a user who sends to a new
topic and then starts the consumer misses nothing. Older queues are read from the place for which the consumer asks."""


class Offsets:
    """Consumer offsets of all groups. Callers that ask for bounds of queues hold a ReadIndex round."""

    def __init__(self, services: Services, old: EvictedBounds | None = None) -> None:
        """`old`: access to evicted messages; None if this node has no tier."""
        self._services = services
        self._old = old
        self._named = NamedCommits(services)

    def query(
        self,
        client: Client,
        group: str,
        topic: str,
        queue_id: int,
        *,
        zero_if_whole: bool,
        done: Callable[[int | None], None],
    ) -> None:
        """Calls `done` with the committed offset. If there is none: with 0 if `zero_if_whole` and the queue still has
        its first message and that is young, else with None.

        `done` is not called if no leader confirms, or if the client is gone. A client that reads every error as
        "nothing committed" might jump to the end; without an answer it asks again.
        """
        tries = 0

        def ask() -> None:
            if not client.closed:
                # A consumer that takes a queue over asks right after the former owner's oneway commit.
                self._services.settle_offsets(group, lambda: self._services.read_index(confirmed))

        def confirmed(ok: bool) -> None:
            nonlocal tries
            if ok:
                done(self._stored_or_zero(group, topic, queue_id, zero_if_whole))
                return
            tries += 1
            if tries <= RETRIES:
                self._services.call_later(RETRY_MS, ask)

        ask()

    def _stored_or_zero(self, group: str, topic: str, queue_id: int, zero_if_whole: bool) -> int | None:
        state = self._services.state
        config = state.topics.get(topic)
        if config is None or not 0 <= queue_id < config.queues:
            return None
        offset = state.offset(group, config.id, queue_id)
        if offset is None and zero_if_whole:
            return 0 if self._is_young(config.id, queue_id) else None
        return offset

    def _is_young(self, topic_id: int, queue_id: int) -> bool:
        """Returns True if the queue still has its first message, and that was stored a short time ago."""
        state = self._services.state
        if first_offset(state, topic_id, queue_id) != 0:
            return False
        first = state.fetch(topic_id, queue_id, 0, 1)  # nothing, or a later one, if it lies in the tier alone
        since_ms = self._services.log_time_ms() - YOUNG_MS
        return bool(first) and first[0].queue_offset == 0 and first[0].store_time_ms > since_ms

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int, name: Name | None, done: Done) -> None:
        """Commits an offset, and calls `done` when that is applied or undecided. A result that is not ok says that the
        topic was deleted meanwhile. `name` identifies the commit if the client repeats it. Raises Refused."""
        config = self._committable(group, topic, queue_id)
        row: list[object] = [group, config.id, queue_id, offset]
        if name is not None:
            self._named.commit(row, name, done)
        else:
            self._services.propose([[commands.COMMIT_OFFSETS, [row]]], done)

    def commit_later(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commits an offset together with others, without an answer. Raises Refused."""
        config = self._committable(group, topic, queue_id)
        self._services.commit_offset_later(group, config.id, queue_id, offset)

    def _committable(self, group: str, topic: str, queue_id: int) -> TopicConfig:
        group_named(self._services.state, group)
        if not self._services.knows_group(group):
            raise Refused(Reason.UNAVAILABLE, f"consumer group {group} is being deleted; try again")
        return self._queue(topic, queue_id)

    # --- bounds ------------------------------------------------------------------------------------------------------

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset behind the queue's last message. Raises Refused."""
        return self._services.state.max_offset(self._queue(topic, queue_id).id, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset of the queue's first message, here or in the tier. Raises Refused."""
        return first_offset(self._services.state, self._queue(topic, queue_id).id, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, done: Callable[[int | Refused], None], *, upper: bool
    ) -> None:
        """Calls `done` with the first offset stored at or after the time, or with `upper` the last one stored at or
        before it, here or in the tier. Raises Refused."""
        queue = self._queue(topic, queue_id).id, queue_id
        offset_by_time(self._services.state, self._old, queue, time_ms, done, upper=upper)

    def earliest_store_ms(self, topic: str, queue_id: int, done: Callable[[int | Refused | None], None]) -> None:
        """Calls `done` with the store time of the queue's first message, here or in the tier; None if the queue is
        empty. Raises Refused."""
        earliest_store_ms(self._services.state, self._old, (self._queue(topic, queue_id).id, queue_id), done)

    def _queue(self, topic: str, queue_id: int) -> TopicConfig:
        config = topic_named(self._services.state, topic)
        if not 0 <= queue_id < config.queues:
            raise Refused(Reason.INVALID, f"topic {config.name} has queues 0 to {config.queues - 1}, not {queue_id}")
        return config


# Commits of offsets that carry an identity: each is carried out once, however often it is repeated.
#
# The log records each commit in a session of its sender, like a producer's session, so the next leader knows it too.
# With each commit a sender states which of its older ones it has settled; if such an older one arrives late, it moves
# no offset back.

SENDERS_MAX = 65_536
UNSETTLED_MAX = 4096
"""The most unsettled commits per sender. A consumer has one for each of its queues."""


class Name(NamedTuple):
    """The identity of a commit: its sender and a sequence."""

    sender: bytes
    sequence: int
    low: int
    """The sender has settled every sequence below this one."""


class _Sender:
    __slots__ = ("low", "proposed")

    def __init__(self) -> None:
        self.low = 0
        self.proposed: set[int] = set()
        """Sequences from `low` on that this node has proposed."""


class NamedCommits:
    """Remembers, while this node leads, the named commits that are not in the log yet."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._senders: OrderedDict[bytes, _Sender] = OrderedDict()

    def commit(self, row: list[object], name: Name, done: Done) -> None:
        """Proposes the row [group, topic_id, queue_id, offset] unless a commit of that name was proposed before. `done`
        gets the outcome in both cases. Raises Refused."""
        sender = self._sender(name)
        if name.sequence in sender.proposed and not self._is_done(name):
            self._wait_for_first(row, name, done)
        elif self._is_done(name):
            done(self._done(row))
        else:
            self._propose(row, name, done)

    def _sender(self, name: Name) -> _Sender:
        session = self._services.state.session(name.sender)
        sender = self._senders.setdefault(name.sender, _Sender())
        self._senders.move_to_end(name.sender)
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)
        low = max(name.low, sender.low, session.low_sequence if session is not None else 0)
        if low > sender.low:
            sender.low = low
            sender.proposed = {sequence for sequence in sender.proposed if sequence >= low}
        if name.sequence < low:
            remark = f"commit {name.sequence} is too late: its sender has settled all commits below {low}"
            raise Refused(Reason.INVALID, remark)
        if len(sender.proposed) >= UNSETTLED_MAX:
            raise Refused(Reason.INVALID, f"more than {UNSETTLED_MAX} commits are not settled")
        return sender

    def _is_done(self, name: Name) -> bool:
        session = self._services.state.session(name.sender)
        return session is not None and session.find(name.sequence) is not None

    def _done(self, row: list[object]) -> ProposeResult:
        exists = row[1] in self._services.state.topics_by_id
        return ProposeResult(Outcome.OK, [commands.done() if exists else commands.not_found("topic")], None, "")

    def _propose(self, row: list[object], name: Name, done: Done) -> None:
        self._senders[name.sender].proposed.add(name.sequence)
        place = SESSION_ROW.pack(name.sequence, row[1], row[2], row[3], 0)
        session = SessionRows(name.sender, name.low, name.sequence, place)
        run: list[commands.Command] = [[commands.COMMIT_OFFSETS, [row]]]
        self._services.propose(run, done, session)

    def _wait_for_first(self, row: list[object], name: Name, done: Done) -> None:
        """Waits for a commit of the same name that is in flight, or was lost with an earlier term. A new proposal is
        placed behind it in the log."""

        def decided(result: ProposeResult) -> None:
            if result.outcome is not Outcome.OK:
                done(ProposeResult(Outcome.UNKNOWN, [], None, "the same commit arrived before, and is undecided"))
            elif self._is_done(name):
                done(self._done(row))
            else:
                remark = "an earlier attempt was lost with its leader; nothing was done, try again"
                sender = self._senders.get(name.sender)
                if sender is not None:
                    sender.proposed.discard(name.sequence)
                done(ProposeResult(Outcome.FAIL, [], None, remark))

        self._services.propose([], decided)
