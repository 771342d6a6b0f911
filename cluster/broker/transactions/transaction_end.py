"""Commits or rolls back transactions, each of them once (docs/adr/0050).

A half message is open as long as the log's state has its row (`statemachine.delivery.half_messages`). The leader ends
it: a commit by a copy for its queue, in whose entry the row is removed; a rollback by the command alone. While one of
them is in progress, all other requests to end the same message get its outcome. So a commit that comes twice, late, or
at the next leader finds no row and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.delivery_time import producer_group_of
from cluster.broker.message_copies import copied, queue_for
from cluster.broker.reads.log_reads import read_intact
from cluster.broker.refusal import Reason, Refused, not_written, when_decided
from cluster.broker.retries import own_topic
from cluster.broker.rights import PUB, Party, Rights, topic_need
from cluster.broker.services import Services
from cluster.flow.gate import ITSELF, GateRequest
from cluster.replication.internal_sends import NoClient, submit_copies
from cluster.replication.message_head import UNIQUE_MARK, property_of
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.figures.service_metrics import ServiceMetrics
from cluster.runtime.service_lifecycle import Part
from raftmq_wire.message_format import Message, decode_message
from statemachine.delivery.half_messages import CheckHalves, EndHalves, HalfMessage
from statemachine.payload import RowKind

if TYPE_CHECKING:
    from cluster.replication.proposals import Proposals
    from statemachine.delivery.half_messages import HalfMessages


PARKED: Final = "parked"
DROPPED: Final = "dropped"


class TransactionMetrics(ServiceMetrics):
    """Metrics of transactions. Counters are updated per half message, gauges before a scrape."""

    def __init__(self, halves: HalfMessages) -> None:
        super().__init__()
        self._halves = halves
        gauge, counter = self.gauge, self.counter
        self._open = gauge("rocketmq_half_messages", "Half messages whose transaction is open")
        self._bytes = gauge("raftmq_half_message_bytes", "Stored bytes of half messages")
        self.committed = counter("rocketmq_commit_messages", "Transactions committed")
        self.rolled_back = counter("rocketmq_rollback_messages", "Transactions rolled back")
        self._given_up = counter("raftmq_half_messages_given_up", "Half messages that ended undecided", ["how"])
        self.asked = counter("raftmq_transaction_checks", "Questions to producers")
        self.mismatched = counter("raftmq_transaction_mismatches", "Requests to end a transaction that is another")

        for how in (PARKED, DROPPED):
            self._given_up.labels(how)

    def given_up(self, how: str, count: int = 1) -> None:
        """Counts half messages that were given up: PARKED after the last check, or DROPPED with their topic."""
        self._given_up.labels(how).inc(count)

    def look(self) -> None:
        """Sets the gauges from the present state."""
        self._open.set(self._halves.pending.count)
        self._bytes.set(self._halves.pending.bytes)


logger = logging.getLogger(__name__)

PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""RocketMQ's topic for half messages whose producer has never decided, although it was asked as often as allowed."""
SYS_FLAG_COMMITTED = 0x8
"""The system flag of a committed message (RocketMQ: TRANSACTION_COMMIT_TYPE)."""
TRIES, RETRY_MS = 10, 200
"""The number of tries, and the milliseconds between them, while a message is being repaired, a topic is changed, or a
copy has no room."""


class Decision(Enum):
    """A producer's decision about its transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """The producer does not know yet and will be asked again."""


class Ending(NamedTuple):
    """A request END_TRANSACTION: the half message, and the producer's decision about it."""

    position: int
    half_offset: int
    """The offset of the half message in the answer to its send, or in a check. It is equal to the message's
    position."""
    group: str
    """The group of the producer."""
    unique_key: str
    decision: Decision
    party: Party
    """The user and address that sent the request."""


class End(StrEnum):
    """The outcome of a request to end a half message. Values are on the wire (`raftmqEnd`)."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolledBack"
    PARKED = "parked"
    DROPPED = "dropped"
    """The half message has ended because its topic was deleted."""
    EARLIER = "earlier"
    """The half message had ended before. It is not recorded in which way."""
    OPEN = "open"
    """The half message stays open, because its producer does not know the decision yet."""


Settled = Callable[[End | Refused], None]
"""Called once with the outcome. If another request for the same message is in progress, it is that request's
outcome."""


class _Copy(NamedTuple):
    """The copy of a half message that is stored in its place."""

    half: HalfMessage
    message: Message
    topic: str
    queue_id: int
    sys_flag: int
    end: End
    stored: Callable[[], None]


class Transactions:
    """Ends half messages. Leader only; callers forward requests to the leader."""

    def __init__(self, node: Services, proposals: Proposals, rights: Rights) -> None:
        self._node = node
        self._rights = rights
        self._proposals = proposals
        self._ending: dict[int, list[Settled] | None] = {}
        """Position -> callers to tell the outcome of the first request to end that message; None if the outcome is
        undecided. An undecided one stays here until the message is seen to have ended, or until this node becomes
        leader again: no second copy is made while the first may still be stored."""
        self._client = NoClient(proposals.gate)
        self.metrics = TransactionMetrics(node.state.halves)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(name="transactions", opened=self.writes_opened, metrics=(self.metrics,))

    def writes_opened(self) -> None:
        """Forgets undecided requests, because writes have opened: everything that this node proposed before is
        decided."""
        self._ending.clear()

    @property
    def refusing(self) -> str:
        """Returns the reason why nothing can be committed at present; "" if it can."""
        return self._proposals.refusing

    def is_ending(self, position: int) -> bool:
        """Returns True if a copy or a command that ends the message is in flight."""
        return position in self._ending

    def end(self, asked: Ending, settled: Settled) -> None:
        """Ends a half message as its producer decided, and calls `settled` with the outcome. The outcome is EARLIER if
        the message has ended before, and also if the party may not end it. Refusals: ERROR if the request does not
        match the message, UNAVAILABLE if nothing was done and another leader may do it, UNKNOWN if it is undecided."""
        self._end(asked, settled, TRIES)

    def _end(self, asked: Ending, settled: Settled, tries: int) -> None:
        if not self._node.writes_open():
            settled(Refused(Reason.UNAVAILABLE, "this node does not lead any more; nothing was done"))
            return
        half = self._node.state.halves.get(asked.position)
        if half is None and self._proposals.is_undecided(asked.position):  # the send was answered before it was applied
            when_decided(self._node, lambda: self._end(asked, settled, tries), settled)
            return
        if half is None:
            self._ending.pop(asked.position, None)
            settled(End.EARLIER)
            return
        if not self._may_end(asked.party, half):
            settled(End.EARLIER)  # the answer is the same as if there were no such half message
            return
        message = self.read(half)
        if message is None:
            self._later(tries, settled, "its bytes cannot be read", lambda left: self._end(asked, settled, left))
            return
        why = mismatch(asked, message)
        if why:
            self.metrics.mismatched.inc()
            logger.warning("a transaction was not ended: %s", why)
            settled(Refused(Reason.ERROR, why))
        elif asked.decision is Decision.UNKNOWN:
            settled(End.OPEN)
        elif asked.decision is Decision.ROLLBACK:
            self._first(half, settled, self._rollback)
        else:
            self._first(half, settled, lambda half, done: self._commit(half, message, done, TRIES))

    def _may_end(self, party: Party, half: HalfMessage) -> bool:
        """Returns True if the party has sent the half message, or may send to the topic of its row. The producer group
        and topic that the request names give no right, because any client can name them."""
        state = self._node.state
        if party.user and party.user == state.halves.owner(half.position):
            return True
        topic = state.topics_by_id.get(half.topic_id)
        needs = [topic_need("" if topic is None else topic.name, PUB)]
        return self._rights.allows(party, needs, "the end of a transaction")

    def read(self, half: HalfMessage) -> Message | None:
        """Returns the half message as it was first stored; None if it cannot be read intact now."""
        pieces = read_intact(self._node, [half.stored])
        return decode_message(pieces[0])[0]._replace(position=half.position) if pieces else None

    def park(self, half: HalfMessage, message: Message) -> None:
        """Stops waiting for the producer: stores a copy in PARKED_TOPIC, where an operator finds it, and ends the half
        message."""
        self._first(half, _nobody, lambda half, done: self._park(half, message, done, TRIES))

    def drop_deleted(self, halves: list[HalfMessage]) -> None:
        """Ends half messages whose topic was deleted. A topic that is created again under the same name has another id,
        and inherits nothing."""
        self.metrics.given_up(DROPPED, len(halves))
        self._node.propose([EndHalves([half.position for half in halves])], lambda _: None)

    # --- one at a time -----------------------------------------------------------------------------------------------

    def _first(self, half: HalfMessage, settled: Settled, act: Callable[[HalfMessage, Settled], None]) -> None:
        """Calls `act` for the message, unless another request to end it is in progress. Then `settled` gets that
        request's outcome."""
        position = half.position
        if position in self._ending:
            waiting = self._ending[position]
            if waiting is None:
                settled(Refused(Reason.UNKNOWN, f"it is undecided what became of the half message at {position}"))
            else:
                waiting.append(settled)
            return
        waiting = self._ending[position] = [settled]

        def done(end: End | Refused) -> None:
            if self._ending.get(position) is waiting:
                if isinstance(end, Refused) and end.reason is Reason.UNKNOWN:
                    self._ending[position] = None
                else:
                    del self._ending[position]
            for each in waiting:
                each(end)

        act(half, done)

    def _rollback(self, half: HalfMessage, done: Settled) -> None:
        def applied(result: ProposeResult) -> None:
            if result.outcome is Outcome.OK:
                self.metrics.rolled_back.inc()
            done(refusal(result.outcome, result.remark) or End.ROLLED_BACK)

        self._node.propose([EndHalves([half.position])], applied)

    def _commit(self, half: HalfMessage, message: Message, done: Settled, tries: int) -> None:
        topic = self._node.state.topics_by_id.get(half.topic_id)
        if topic is None:
            self.drop_deleted([half])
            done(End.DROPPED)
            return
        stored = self.metrics.committed.inc
        self._copy(
            _Copy(half, message, topic.name, half.queue_id, SYS_FLAG_COMMITTED, End.COMMITTED, stored), done, tries
        )

    def _park(self, half: HalfMessage, message: Message, done: Settled, tries: int) -> None:
        copy = _Copy(half, message, PARKED_TOPIC, 0, 0, End.PARKED, lambda: self.metrics.given_up(PARKED))
        run = own_topic(self._node.state, PARKED_TOPIC, 1)  # the topic may exist without queues in this group
        if not run:
            self._copy(copy, done, tries)
            return

        def made(result: ProposeResult) -> None:
            if result.outcome is Outcome.OK and result.results[0].ok:
                self._copy(copy, done, tries)
            else:
                done(Refused(Reason.UNAVAILABLE, f"topic {PARKED_TOPIC} could not be created: {result.remark}"))

        self._node.propose(run, made)

    def _copy(self, copy: _Copy, done: Settled, tries: int) -> None:
        """Stores the copy. The half message ends in the same entry."""
        node, proposals, half = self._node, self._proposals, copy.half
        if proposals.refusing or not node.writes_open():
            done(Refused(Reason.UNAVAILABLE, proposals.refusing or "this node does not lead any more"))
            return
        slot = proposals.topics.slot(copy.topic)
        if slot is None:
            self._later(tries, done, f"topic {copy.topic} is being changed", lambda left: self._copy(copy, done, left))
            return
        over = proposals.gate.refusal(self._client.in_flight, half.size, ITSELF, GateRequest.OWN)
        if over is not None:
            if not tries and copy.end is not End.PARKED:  # parking is the node's own act: no request is refused
                proposals.gate.refused(over)
            self._later(tries, done, over.remark, lambda left: self._copy(copy, done, left))
            return

        def told(outcome: Outcome) -> None:
            if outcome is Outcome.OK:
                copy.stored()
            done(refusal(outcome, "the copy of the half message was not stored, or may not have been") or copy.end)

        queue_id = queue_for(copy.queue_id, slot)
        message, flags = copy.message, copy.sys_flag
        made = copied(message, message.properties, sys_flag=flags, prepared_position=half.position)
        effect = (EndHalves, half.position)
        submit_copies(proposals, self._client, [made], slot, queue_id, RowKind.COMMITTED, effect, told)

    def _later(self, tries: int, settled: Settled, why: str, again: Callable[[int], None]) -> None:
        if not tries:
            settled(Refused(Reason.UNAVAILABLE, f"{why}; nothing was done"))
            return
        self._node.call_later(RETRY_MS, lambda: again(tries - 1))


def mismatch(asked: Ending, message: Message) -> str:
    """Returns the reason why the request is not about this half message; "" if it is.

    The answer to a send that was acknowledged early may name a position that was truncated with its entry and given to
    another message, perhaps of the same producer group. The unique key tells them apart.
    """
    where = f"the half message at {asked.position}"
    if asked.half_offset != message.queue_offset:
        return f"{where} has the half offset {message.queue_offset}, not {asked.half_offset}"
    group = producer_group_of(message.properties)
    if asked.group != group:
        return f"{where} is of producer group {group}, not {asked.group[:255]}"
    key = property_of(message.properties, UNIQUE_MARK).decode("utf-8", "replace")
    if asked.unique_key != key:
        return f"{where} has the unique key {key[:255]}, not {asked.unique_key[:255]}"
    return ""


def refusal(outcome: Outcome, why: str) -> Refused | None:
    """Returns the refusal for an entry with this outcome; None if it was applied. `why`: the remark of the refusal."""
    return None if outcome is Outcome.OK else not_written(outcome, why)


def _nobody(end: End | Refused) -> None:
    """Ignores the outcome of a request whose sender does not wait for it."""


# Asks producers about half messages that nobody has ended (docs/adr/0050).
#
# The number of checks is part of the log's state, so the next leader continues it, and a check counts whether or not a
# producer of the group is connected anywhere. After `transaction.check_max` checks the message is parked.

BATCH_MAX = 256
"""The most half messages in one command, and in one turn."""

AskProducer = Callable[[str, str, "HalfMessage", "Message"], None]
"""(group, name of the row's topic, half message, its message): asks one producer of the group whose user may send to
the topic, on whichever node it is connected. Its answer comes as a separate request."""


class CheckBack:
    """Asks producers about open transactions. It runs on every node and does nothing unless the node leads."""

    def __init__(self, node: Services, transactions: Transactions, ask: AskProducer) -> None:
        self._node = node
        self._transactions = transactions
        self._ask = ask
        self._proposed = False
        """True while checks are proposed and undecided: until they are applied, their half messages are still due in
        the state."""
        self._after: HalfMessage | None = None
        """The half message that was looked at last; None to begin with the first. Those that can be neither read nor
        parked stay due. So the next look begins behind them."""

    def tick(self, now_ms: int) -> None:
        """Runs on a timer. While nothing is due, it costs one comparison.

        While sends are refused because the disk is full, no commit can be stored, so no producer is asked: the checks
        would only be used up.
        """
        check_ms = self._node.state.halves.check_ms
        if check_ms is None or self._proposed or not self._node.writes_open() or self._transactions.refusing:
            return
        log_ms = self._node.log_time_ms()
        if check_ms <= log_ms:
            self._look(log_ms)

    def _look(self, log_ms: int) -> None:
        node, transactions = self._node, self._transactions
        found = node.state.halves.due(log_ms, BATCH_MAX, self._after)
        self._after = found[-1] if len(found) == BATCH_MAX else None
        due = [half for half in found if not transactions.is_ending(half.position)]
        topics = node.state.topics_by_id
        deleted = [half for half in due if half.topic_id not in topics]
        if deleted:
            transactions.drop_deleted(deleted)
        asked = []
        for half in due:
            if half.topic_id not in topics:
                continue
            if half.checks < node.config.transaction.check_max:
                asked.append(half.position)
            elif (message := transactions.read(half)) is not None:
                transactions.park(half, message)
        if asked:
            self._proposed = True
            node.propose([CheckHalves(log_ms + node.config.transaction.check_interval_ms, asked)], self._counted)

    def _counted(self, result: ProposeResult) -> None:
        """Asks the producers once the checks are counted in the log, so that the next leader knows of the checks."""
        self._proposed = False
        if result.outcome is not Outcome.OK or not result.results[0].ok:
            return
        for position in result.results[0].value:
            half = self._node.state.halves.get(position)
            if half is None or self._transactions.is_ending(position):
                continue  # its producer has decided meanwhile
            topic = self._node.state.topics_by_id.get(half.topic_id)
            if topic is None:
                continue  # its topic was deleted meanwhile: the half message is dropped when it is due again
            message = self._transactions.read(half)
            if message is not None:
                self._transactions.metrics.asked.inc()
                self._ask(producer_group_of(message.properties), topic.name, half, message)
