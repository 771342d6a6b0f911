"""Ends a transaction: sends END_TRANSACTION (37) until it is settled, and finds out how the message ended.

The answer says how the message ended (ext field `raftmqEnd`) if the leader that answers ended it. After a lost answer,
or when another producer of the group was faster, the answer only says that the transaction is over. Then the client
searches for the message by its id: only a committed message can be found.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from raftmq.client.admin import AsyncAdmin
from raftmq.client.cluster_view import ClusterView
from raftmq.client.errors import Failed, NotFound, RaftMQError, Unknown
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import FIRST_GROUP

END_FIELD = "raftmqEnd"
"""The ext field of the answer to 37 that says how the message ended: "committed", "rolledBack", "parked" (no producer
decided in time), "dropped" (its topic was deleted), or "earlier" (it had ended before, and how is not known)."""
_COMMITTED, _EARLIER = "committed", "earlier"
_HINT = "The cluster asks a producer of the group, whose check decides; look the message up by its id afterwards."


class Resolution(Enum):
    """The outcome of a transaction; the values are those of RocketMQ's field commitOrRollback."""

    COMMIT = 0x8
    ROLLBACK = 0xC
    UNDECIDED = 0x0
    """The outcome is not known yet; the cluster asks again."""


class Half(NamedTuple):
    """The identity of a half message: all fields that the server compares before it ends the transaction."""

    topic: str
    message_id: str
    offset: int
    """The queue offset from the reply to its send."""
    position: int
    group: int = FIRST_GROUP
    """The group of brokers that stores the message and ends the transaction."""


class TransactionEnds:
    """Ends the transactions of one producer group."""

    def __init__(self, view: ClusterView, group: str, timeout_s: float) -> None:
        self._view = view
        self._group = group
        self._timeout_s = timeout_s
        self._admin = AsyncAdmin(view, timeout_s=timeout_s)

    async def end(self, half: Half, resolution: Resolution) -> None:
        """Ends the transaction as `resolution` says, asking the leader, and the next leader, until it is settled.
        Returns only if the message ended as `resolution` says. Raises Failed if it ended otherwise, the server's error
        if it refuses the request, and Unknown if it is not known how the message ended, or not yet."""
        what = f"{resolution.name.lower()} of transaction {half.message_id}"
        try:
            ended = await self.ask(half, resolution, what=what)
            if ended == _EARLIER:
                ended = await self._look_up(half)
        except RaftMQError as error:
            if not error.retryable and not isinstance(error, Unknown):
                raise
            # A check may still end the transaction as the caller wants, so an error without an outcome is no failure.
            text, ids = f"{error}; it may have ended, or may end so by a check", (half.message_id,)
            raise Unknown(text, code=error.code, hint=_HINT, message_ids=ids) from error
        if (ended == _COMMITTED) != (resolution is Resolution.COMMIT):
            raise Failed(
                f"{what}: it has ended otherwise ({_WORDS.get(ended, ended)})",
                hint="A check decided before this did. Let `check` answer UNDECIDED while it cannot know.",
                message_ids=(half.message_id,),
            )

    async def _look_up(self, half: Half) -> str:
        """Searches for the half message by its id; returns how the finished transaction ended. Raises RaftMQError."""
        try:
            found = await self._admin.query_messages(half.topic, half.message_id, unique=True, as_stored=True)
        except NotFound:
            return "dropped"
        return _COMMITTED if found else "not committed"

    async def ask(self, half: Half, resolution: Resolution, *, what: str, from_check: bool = False) -> str:
        """Sends request 37 until it is answered; returns how the message ended. Raises RaftMQError."""
        ext = {
            "producerGroup": self._group,
            "topic": half.topic,
            "tranStateTableOffset": str(half.offset),
            "commitLogOffset": str(half.position),
            "commitOrRollback": str(resolution.value),
            "fromTransactionCheck": "true" if from_check else "false",
            "msgId": half.message_id,
            "transactionId": half.message_id,
        }
        view = await self._view.groups.when_heard(half.group)
        reply = await view.call(RequestCode.END_TRANSACTION, ext, what=what, timeout_s=self._timeout_s, writes=True)
        return reply.ext.get(END_FIELD, _EARLIER)


_WORDS = {
    "rolledBack": "rolled back",
    "parked": "given up, because no producer of the group decided in time",
    "dropped": "dropped, because its topic was deleted",
}
