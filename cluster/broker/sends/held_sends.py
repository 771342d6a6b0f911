"""Finds out whether a send with an identity is already stored or in flight.

A repeated send is recognised by its session and sequence, and only if it is for the same topic. In doubt it is stored
as a new message. The id of a session is derived from its kind, its user and the name that the client gave it
(`cluster.replication.send_identity`). So no client can use a sequence of another sender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.refusal import Reason, Refused
from statemachine.dedup import SessionUnreadError

if TYPE_CHECKING:
    from cluster.broker.services import Services
    from cluster.replication.message_batch import Send
    from cluster.replication.pending_requests import PendingEntry
    from cluster.replication.proposals import Proposals
    from cluster.replication.send_identity import SessionIds
    from cluster.runtime.turns.work import WorkSteps
    from statemachine.broker_state import BrokerState
    from statemachine.dedup import Stored

logger = logging.getLogger(__name__)

SessionAnswer = Callable[[bool], None]


class LongSessionError(Exception):
    """Raised if a session must first be read from the state, in several steps (`BrokerState.read_session`)."""

    def __init__(self, session: bytes) -> None:
        super().__init__("a producer's session is too long to be read at once")
        self.session = session


class UnderWay(NamedTuple):
    """A send with the same identity that is queued or proposed and not yet decided."""

    session: bytes
    """The id of the session under which it was proposed."""
    place: tuple[PendingEntry, int] | Send
    """(its entry, its position in the entry); the send itself while it is still queued."""

    @property
    def first(self) -> Send:
        """The first send, which is in flight."""
        return self.place[0].sends[self.place[1]] if isinstance(self.place, tuple) else self.place


class OtherTopic:
    """The result that the sender has used this sequence for a message of another topic."""


class HeldSends:
    """Searches for sends in the sessions of the log and in the proposals of this node, while it leads."""

    def __init__(self, state: BrokerState, proposals: Proposals) -> None:
        self._state = state
        self._proposals = proposals

    def highest(self, names: SessionIds) -> int:
        """Returns the highest known sequence of the sender. When the sender is first seen in a term of leadership, this
        includes the sessions that its sends had before it had a user, and below OWNERS_LEVEL."""
        highest = self._proposals.session_max.get(names.own)
        if highest is None:
            # Sends from before the sender had a user count too, so that an upgrade does not make repetitions of them
            # new messages.
            highest = max([self._highest(name) for name in names if name])
        return highest

    def _highest(self, session: bytes) -> int:
        highest = self._proposals.session_max.get(session)
        return self._state.max_sequence(session) if highest is None else highest

    def find(self, names: SessionIds, sequence: int, topic_id: int) -> Stored | UnderWay | OtherTopic | None:
        """Returns where the message with this sequence is stored, or the send in flight with this sequence. Returns
        OtherTopic if the sender has used the sequence for another topic, None if there is nothing. Raises
        LongSessionError if a session must be read first. Raises Refused if it can no longer be known whether the
        message was stored."""
        for name in names:
            # The log is searched before the proposals: an applied send is decided, even if this node still has it in
            # flight.
            if name and (stored := self._stored(names, name, sequence, topic_id)) is not None:
                return stored
        for name in names:
            if name and (name is names.own or sequence <= self._proposals.session_max.get(name, 0)):
                place = self._proposals.repeats.find(name, sequence)
                if place is None:
                    continue
                found = UnderWay(name, place)
                # The same sequence for another topic is another message. It is never answered with the offset of this
                # one.
                if found.first.slot.topic_id == topic_id:
                    return found
                if name is names.own:
                    return OtherTopic()
        return None

    def _stored(self, names: SessionIds, name: bytes, sequence: int, topic_id: int) -> Stored | OtherTopic | None:
        try:
            session = self._state.session_at_hand(name)
        except SessionUnreadError:
            raise LongSessionError(name) from None
        # The send is new, or was forgotten after dedup.session_hours. From then on a repetition is stored as a new
        # message.
        if session is None:
            return None
        found = session.find(sequence)
        if found is not None and found[0] == topic_id and is_message(found):
            return found
        if found is not None:
            return OtherTopic() if name is names.own else None
        # A session without a user may belong to another sender, so its settled sequences say nothing about this sender.
        if name is not names.unowned and session.forgotten(sequence):
            remark = f"sequence {sequence} of this producer is below {session.low_sequence}, which it declared settled"
            raise Refused(Reason.INVALID, f"{remark}; use a new producer id")
        return None


def is_message(found: Stored) -> bool:
    """Returns True if the row of the session stands for a message; False if it stands for a committed offset."""
    return found[3] != 0


class SessionReads:
    """Reads long producer sessions.

    A producer may leave 65,536 sequences unsettled, each with a row of its own. Apply keeps the recently used sessions
    in memory. Others are read when a send repeats one of their sequences.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[bytes, list[SessionAnswer]] = {}

    def read(self, producer_id: bytes, told: SessionAnswer) -> None:
        """Reads the session in steps, and then calls `told` with True, or with False if it could not be read. The
        session stays in memory for a while."""
        waiting = self._waiting.get(producer_id)
        if waiting is None:
            waiting = self._waiting[producer_id] = []
            self._services.turns.begin_later(self, self._read(producer_id))
        waiting.append(told)

    def _read(self, producer_id: bytes) -> WorkSteps:
        done = False
        try:
            yield from self._services.state.read_session(producer_id)
            done = True
        except Exception:
            logger.exception("the session of a producer cannot be read")
        for told in self._waiting.pop(producer_id):
            told(done)
            yield
