"""Withdraws sends that wait for their entry, once there is a reason to: their client is gone, or their user has lost
the right to send to the topic. A send may wait as long as a majority is slow.

Sends that are proposed already are not withdrawn; the log decides them. A oneway send stays when its connection closes,
because its client may close the connection right after the send. A send also stays if a repetition of it waits behind
it on another connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Final

from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import PUB, Party, topic_need
from raftlog.work import FRAME_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.rights import Rights
    from cluster.broker.sends.send_outcomes import SendOutcomes
    from cluster.replication.message_batch import Send
    from cluster.replication.outcome import ReplyTo
    from cluster.replication.proposals import Proposals
    from cluster.runtime.turns.work import Soon, Turns, WorkSteps

_OWNER: Final = ("withdrawn sends",)
GONE: Final = Refused(Reason.UNAVAILABLE, "its client is gone; nothing was stored")


class WithdrawnSends:
    """Withdraws waiting sends. Event loop only."""

    def __init__(self, proposals: Proposals, outcomes: SendOutcomes, rights: Rights, turns: Turns, soon: Soon) -> None:
        """`soon` calls a function in a later turn of the loop."""
        self._proposals = proposals
        self._outcomes = outcomes
        self._rights = rights
        self._turns = turns
        self._soon = soon
        self._gone: set[Hashable] = set()
        """The owners of the sends to be found in the next look at the queue: clients of other nodes that have
        disconnected."""

    def connections_closed(self, closed: Collection[ReplyTo]) -> None:
        """Withdraws the waiting sends of closed connections. Their identities are remembered already, so that
        repetitions are recognised."""
        for send in self._proposals.withdraw(lambda send: send.connection in closed and not send.oneway):
            send.hold.answered()

    def client_gone(self, path: ReplyTo) -> None:
        """Withdraws the sends that another node has forwarded for a client which has disconnected from that node. The
        other node waits for their answers, and then forgets the sends.

        The other node reports one send after the other, but all are withdrawn with the first: if the client sends them
        again over another connection in the meantime, a send that stayed would be stored before one that was withdrawn
        (seed 970000031).
        """
        if not self._gone:
            self._soon(self._look_for_gone)
        self._gone.add(path.owner)

    def _look_for_gone(self) -> None:
        gone, self._gone = self._gone, set()
        sends = self._proposals.withdraw(lambda send: send.connection.owner in gone and not send.oneway)
        self._tell(sends, lambda _: GONE)

    def judge_again(self) -> None:
        """Refuses the waiting sends of users who may no longer send to their topic. Called after a change of users,
        rules or the mode. Sends that no user has signed stay, because they were accepted without a right."""
        if not self._rights.enforces:
            return
        known: dict[tuple[int, str, str], bool] = {}

        def is_denied(send: Send) -> bool:
            if not send.user:
                return False
            key = send.user, send.connection.in_flight.address, send.slot.name
            if key not in known:
                charge(FRAME_UNITS)
                user, address, topic = key
                known[key] = not self._rights.allows(Party(user, address), [topic_need(topic, PUB)], "SEND_MESSAGE")
            return known[key]

        self._tell(self._proposals.withdraw(is_denied, with_repeats=True), _no_longer)

    def _tell(self, sends: list[Send], why: Callable[[Send], Refused]) -> None:
        if sends:
            self._turns.begin(_OWNER, self._told(sends, why))

    def _told(self, sends: list[Send], why: Callable[[Send], Refused]) -> WorkSteps:
        for send in sends:
            charge(FRAME_UNITS)
            self._outcomes.withdrawn(send, why(send))
            yield


def _no_longer(send: Send) -> Refused:
    return Refused(
        Reason.NO_PERMISSION, f"the right to send to topic {send.slot.name} was taken away; nothing was stored"
    )
