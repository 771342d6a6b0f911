"""Decides the answer to each send, and whether its identity (`cluster.replication.send_identity`) is settled, or kept
so that a repetition of the send is recognised.

A send that was not answered, or was answered UNKNOWN, is *unanswered*: its identity is remembered, so that its
repetition is recognised. A send that got a final answer is settled, and never remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cluster.broker.refusal import Reason, Refused
from cluster.replication.outcome import Outcome
from cluster.replication.send_identity import Identity
from cluster.runtime.host.error_containment import contain

if TYPE_CHECKING:
    from cluster.broker.sends.closed_connections import ClosedConnections
    from cluster.replication.message_batch import Built, Send
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.send_identity import RetryMemory
    from cluster.runtime.clock import Clock
    from statemachine.broker_state import BrokerState


class SendAnswers(Protocol):
    """Answers the clients' sends."""

    def acknowledge(self, send: Send, queue_id: int, offset: int, positions: tuple[int, ...] | int) -> None:
        """Answers that the message is stored, with its queue, queue offset and position in the log; for a batch, with
        the positions of all its messages."""

    def acknowledge_plain(self, sends: list[Send], built: Built, at: int) -> int:
        """Answers all plain sends from index `at` on, and settles their sessions. Stops at the first send that is not
        plain, and returns its index."""

    def fail(self, send: Send, refused: Refused) -> None:
        """Answers that the message was not stored; with the reason UNKNOWN, that its outcome is unknown."""


class SendOutcomes:
    """Answers sends and settles their identities. Implements `cluster.replication.pending_requests.SendReplies`."""

    def __init__(
        self,
        clock: Clock,
        state: BrokerState,
        retries: RetryMemory,
        answers: SendAnswers,
        closings: ClosedConnections,
    ) -> None:
        self._clock = clock
        self._state = state
        self._retries = retries
        self._answers = answers
        self._closings = closings

    def committed(self, sends: list[Send], built: Built) -> int:
        """Acknowledges the plain sends at the beginning of a committed entry. Their answers are known since the entry
        was built. Returns the number of acknowledged sends; `stored` answers the others."""
        return 0 if self._closings.waiting else self._answers.acknowledge_plain(sends, built, 0)

    def stored(self, sends: list[Send], built: Built, muted: set[int]) -> None:
        """Acknowledges the sends of an entry, except those whose indexes are in `muted`. The entry is committed and
        applied, unless the level of its sends allows an early answer (`cluster.replication.acks.early_answers`). Only
        this method and `committed` acknowledge new sends."""
        if self._closings.waiting:
            self._remember_closing(sends, muted)
        count, after = len(sends), 0
        while (at := after if muted else self._answers.acknowledge_plain(sends, built, after)) < count:
            send = sends[at]
            after = at + 1
            path = send.connection
            if muted and at in muted:
                continue
            send.hold.answered()
            if send.oneway:
                settle(path, send.producer_id, send.sequence)
                if send.done is not None:
                    contain("ending a copy", send.done, Outcome.OK)
            elif not path.closed:  # otherwise it was remembered when its connection closed
                settle(path, send.producer_id, send.sequence)
                if send.schedule is not None:
                    self._name_due(send, built.positions[at])
                self._answers.acknowledge(send, send.queue_id, built.offsets[at], built.positions[at])

    def stored_before(self, send: Send, topic_id: int, queue_id: int, queue_offset: int, position: int) -> None:
        """Answers a repeated send with the result of the first one, which is in the log."""
        settle(send.connection, send.producer_id, send.sequence)
        positions: tuple[int, ...] | int = position
        if send.batch:
            items = self._state.fetch(topic_id, queue_id, queue_offset, len(send.batch))
            positions = tuple(item.position for item in items)
        if send.schedule is not None:
            self._name_due(send, position)
        self._answers.acknowledge(send, queue_id, queue_offset, positions)

    def _name_due(self, send: Send, position: tuple[int, ...] | int) -> None:
        """Looks up the due time of a scheduled send that repeats an earlier one. The repetition has no due time of its
        own, because no entry was built from it."""
        if not send.due_ms and type(position) is int and send.schedule is not None and send.schedule.names_due:
            found = self._state.timers.at(position)
            send.due_ms = 0 if found is None else found[0].due_ms

    def refused(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, or is known to be lost. The client may send it again, to any node."""
        self._fail(send, Refused(Reason.UNAVAILABLE, remark))

    def crowded(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because more sends arrive than the log takes. The client may send it
        again."""
        self._fail(send, Refused(Reason.BUSY, remark, counted=True))

    def limited(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because its owner is over a quota. The client may send it again
        later."""
        self._fail(send, Refused(Reason.LIMITED, remark, counted=True))

    def withdrawn(self, send: Send, refused: Refused) -> None:
        """Answers a send that was taken back before it was proposed (`cluster.broker.sends.withdrawn_sends`)."""
        self._fail(send, refused)

    def unbuildable(self, send: Send, remark: str) -> None:
        """Answers a send of which no entry could be built, because of a fault of this node. If the client repeats it,
        it gets the same answer."""
        self._fail(send, Refused(Reason.ERROR, remark))

    def _fail(self, send: Send, refused: Refused) -> None:
        path = send.connection
        send.hold.answered()
        if send.done is not None:
            send.done(Outcome.FAIL)
            return
        if not settle(path, send.producer_id, send.sequence) and self._closings.hears(path):
            self._remember(send)  # a refused repetition says nothing about the first attempt
        self._answers.fail(send, refused)

    def unknown(self, send: Send, remark: str) -> None:
        """Answers that the outcome of a send is unknown: it was proposed and is undecided."""
        send.hold.answered()
        if send.done is not None:
            send.done(Outcome.UNKNOWN)
            return
        if self._closings.hears(send.connection):
            self._remember(send)
        self._answers.fail(send, Refused(Reason.UNKNOWN, remark))

    def connections_closed(self, unanswered: list[Send]) -> None:
        """Remembers the sends of closed connections, whose clients get no answer any more. Each send may be repeated,
        perhaps before the log has decided."""
        for send in unanswered:
            self._remember(send)

    def _remember_closing(self, sends: list[Send], muted: set[int]) -> None:
        closed = self._closings.waiting
        for at, send in enumerate(sends):
            if send.connection in closed and at not in muted:
                self._remember(send)

    def _remember(self, send: Send) -> None:
        """Remembers the identity of an unanswered send, unless the client itself names its sessions."""
        if send.oneway or not send.unique_key or not send.issued:
            return
        identity = Identity(send.producer_id, send.sequence, send.low_sequence)
        now_ms = self._clock.monotonic_ms()
        self._retries.remember(send.user, send.slot.name, send.unique_key, send.body, identity, now_ms)
        leave_session(send.connection, send.producer_id)


def settle(path: ReplyTo, producer_id: bytes, sequence: int) -> bool:
    """Settles a send that got a final answer. Returns False if its identity belongs to an earlier session, which means
    that the send was a repetition."""
    session = path.session
    if session is None or session.producer_id != producer_id:
        return False
    session.settle(sequence)
    return True


def leave_session(path: ReplyTo, producer_id: bytes) -> None:
    """Ends the connection's session if `producer_id` is its present one. The connection continues under a new id, so
    that a repetition of the send is still recognised by the old id."""
    if path.session is not None and path.session.producer_id == producer_id:
        path.session = None
