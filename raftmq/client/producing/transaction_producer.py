"""AsyncTransactionProducer: sends messages that become visible only if a local transaction of the program succeeds.

Life of a transaction: the half message is stored (consumers do not see it) -> the block runs, and does the work that
the message announces -> commit or rollback. If neither reaches the cluster, because the program died or was cut off,
the cluster asks any producer of the group, and its `check` answers from what the program has stored.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Unpack

from raftmq.client.cluster_view import ClusterView
from raftmq.client.errors import RaftMQError, Unknown
from raftmq.client.message import Message, SendOptions
from raftmq.client.producing.producer import TIMEOUT_S, AsyncProducer
from raftmq.client.producing.transaction_check import CheckBack
from raftmq.client.producing.transaction_end import Half, Resolution, TransactionEnds
from raftmq_wire.names import check_name
from raftmq_wire.queue_numbers import group_of

AsyncCheck = Callable[[Message], Awaitable[Resolution]]
"""A function that returns the outcome of a local transaction, given its message; it may be called in any program of the
group."""
CHECK_AFTER_S_MAX = 86_400
UNSETTLED_MAX = 10_000
"""The most decisions that are remembered while the cluster has not confirmed them."""


class AsyncTransactionProducer:
    """A member of a producer group, for `async with`: it sends transactions, and answers the cluster's checks of
    transactions of all members of the group."""

    def __init__(self, view: ClusterView, group: str, check: AsyncCheck, *, timeout_s: float = TIMEOUT_S) -> None:
        if not group:
            raise ValueError("a transaction producer needs a group, whose members answer for each other")
        if not callable(check):
            raise TypeError(f"check is a function of a message, not {type(check).__name__}")
        self.group = group
        check_name("group", group)
        self.closed = False
        self._check = check
        self._timeout_s = timeout_s
        self._producer = AsyncProducer(view, group=group, timeout_s=timeout_s)
        self._ends = TransactionEnds(view, group, timeout_s)
        self._check_back = CheckBack(view, group, self._decide, self._ends)
        self._opened = False
        self._decided: dict[str, Resolution] = {}
        """Transactions of this program whose end the cluster has not confirmed: message id -> decision. The decision is
        UNDECIDED while the block runs."""

    async def open(self) -> AsyncTransactionProducer:
        """Registers this producer with the nodes, so that they can ask it. Raises Refused for an invalid group name,
        and Unreachable."""
        await self._check_back.open(self._timeout_s)
        self._opened = True
        return self

    def transaction(
        self, topic: str, body: bytes, *, check_after_s: float | None = None, **options: Unpack[SendOptions]
    ) -> AsyncTransaction:
        """Returns a transaction, for `async with`: one message and the block of code that it announces.

        The message is stored when the block is entered; if that fails, the block does not run. At the end of the block
        the message is committed; after an exception it is rolled back. `check_after_s` is the time for which the
        cluster waits before it asks programs of the group (default: `transaction.timeout_ms`, 6 s); it should be longer
        than the block takes.
        """
        if check_after_s is not None and not 0 < check_after_s <= CHECK_AFTER_S_MAX:
            raise ValueError(f"check_after_s={check_after_s} is not between 0 and {CHECK_AFTER_S_MAX}")
        return AsyncTransaction(self, topic, body, check_after_s, options)

    async def close(self) -> None:
        """Leaves the group. The cluster asks other members of the group about transactions that are still open."""
        if self.closed:
            return
        self.closed = True
        if self._opened:
            await self._check_back.close()
        await self._producer.close()

    async def __aenter__(self) -> AsyncTransactionProducer:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- for its transactions

    async def begin(self, topic: str, body: bytes, check_after_s: float | None, options: SendOptions) -> Half:
        """Stores the half message of a transaction. Raises as a send does; RuntimeError if the producer is not open,
        and Unknown if the answer does not say where the message is stored."""
        if not self._opened:
            raise RuntimeError("the transaction producer is not open; use it in a with block")
        properties = {**(options.get("properties") or {}), "TRAN_MSG": "true", "PGROUP": self.group}
        if check_after_s is not None:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(math.ceil(check_after_s))
        sent: SendOptions = {**options, "properties": properties}
        try:
            result = await self._producer.send(topic, body, **sent)
        except Unknown as error:
            for message_id in error.message_ids:
                self._remember(message_id, Resolution.ROLLBACK)  # the message may be stored
            raise
        if result.position < 0:
            raise Unknown(f"half message to {topic}: the answer does not say where it is stored")
        self._remember(result.message_id, Resolution.UNDECIDED)
        group = group_of(result.queue_id)
        return Half(topic, result.message_id, result.queue_offset, result.position, group)

    async def end(self, half: Half, resolution: Resolution) -> None:
        """Ends the transaction as `resolution` says. Until the cluster confirms it, checks get the same answer."""
        self._remember(half.message_id, resolution)
        try:
            await self._ends.end(half, resolution)
        except Unknown:
            raise  # the decision stays in `_decided`
        except RaftMQError:
            self.forget(half)
            raise
        self.forget(half)

    def forget(self, half: Half) -> None:
        """Forgets the decision about a transaction; the user's check function decides from now on."""
        self._decided.pop(half.message_id, None)

    def _remember(self, message_id: str, resolution: Resolution) -> None:
        self._decided[message_id] = resolution
        if len(self._decided) > UNSETTLED_MAX:
            oldest = next((key for key, value in self._decided.items() if value is not Resolution.UNDECIDED), None)
            if oldest is not None:
                del self._decided[oldest]

    async def _decide(self, message: Message) -> Resolution:
        known = self._decided.get(message.message_id)
        return await self._check(message) if known is None else known


class AsyncTransaction:
    """One transaction: `begin` (or `async with`), then one of `commit`, `rollback` and `leave_to_check`."""

    def __init__(
        self,
        producer: AsyncTransactionProducer,
        topic: str,
        body: bytes,
        check_after_s: float | None,
        options: SendOptions,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._body = body
        self._check_after_s = check_after_s
        self._options = options
        self._half: Half | None = None
        self._wish: Resolution | None = None

    @property
    def message_id(self) -> str:
        """The message's id, by which `check` and consumers know it. Raises RuntimeError before the message is
        stored."""
        return self._stored().message_id

    async def begin(self) -> AsyncTransaction:
        """Stores the half message. Raises Failed, Unknown, Refused, NotFound; after any of them, the caller must not do
        the work that the message would announce."""
        if self._half is not None:
            raise RuntimeError("this transaction has begun; make a new one")
        self._half = await self._producer.begin(self._topic, self._body, self._check_after_s, self._options)
        return self

    async def commit(self) -> None:
        """Commits the message; returns when consumers can see it. Raises Failed if a check rolled it back, Unknown if
        the commit was not confirmed in time."""
        await self._end(Resolution.COMMIT)

    async def rollback(self) -> None:
        """Rolls the message back: consumers never see it. Raises Failed if a check committed it, and Unknown as
        `commit` does."""
        await self._end(Resolution.ROLLBACK)

    def leave_to_check(self) -> None:
        """Leaves the decision to `check`, which the cluster calls later. Meant for a local transaction whose outcome is
        unknown."""
        half = self._stored()
        self._decide(Resolution.UNDECIDED)
        self._producer.forget(half)

    async def _end(self, resolution: Resolution) -> None:
        half = self._stored()
        self._decide(resolution)
        await self._producer.end(half, resolution)

    def _decide(self, resolution: Resolution) -> None:
        if self._wish not in (None, resolution):
            assert self._wish is not None
            raise RuntimeError(f"transaction {self.message_id} was decided before: {self._wish.name.lower()}")
        self._wish = resolution

    def _stored(self) -> Half:
        if self._half is None:
            raise RuntimeError("the transaction has not begun; use it in a with block")
        return self._half

    async def __aenter__(self) -> AsyncTransaction:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wish is not None:
            return
        if error is None:
            await self.commit()
        elif isinstance(error, Exception):
            try:
                await self.rollback()
            except RaftMQError as failure:
                error.add_note(f"and the message of the transaction was not rolled back: {failure}")
        else:  # the interruption may have come after the local transaction was done, so only the check can tell
            self.leave_to_check()
