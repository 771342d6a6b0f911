"""TransactionProducer: the blocking form of AsyncTransactionProducer, for threads. `check` runs in a thread of its
own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Unpack

from raftmq.client.cluster_view import ClusterView
from raftmq.client.loop_thread import LoopThread
from raftmq.client.message import Message, SendOptions
from raftmq.client.producing.transaction_end import Resolution
from raftmq.client.producing.transaction_producer import AsyncTransaction, AsyncTransactionProducer

Check = Callable[[Message], Resolution]
"""A function that returns the outcome of a local transaction, given its message. It may be called in any program of the
group, in a thread of its own, for one message at a time."""


class TransactionProducer:
    """A member of a producer group, for `with`: it sends transactions, from any thread, and answers the cluster's
    checks of transactions of all members of the group."""

    def __init__(self, thread: LoopThread, view: ClusterView, group: str, check: Check, *, timeout_s: float) -> None:
        if not callable(check):
            raise TypeError(f"check is a function of a message, not {type(check).__name__}")
        self._thread = thread
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="raftmq-check")

        async def asked(message: Message) -> Resolution:
            return await asyncio.get_running_loop().run_in_executor(self._checks, check, message)

        async def made() -> AsyncTransactionProducer:
            return AsyncTransactionProducer(view, group, asked, timeout_s=timeout_s)

        self.producer = thread.run(made())

    def open(self) -> TransactionProducer:
        """Registers this producer with the nodes, so that they can ask it. Raises Refused for an invalid group name,
        and Unreachable."""
        self._thread.run(self.producer.open())
        return self

    def transaction(
        self, topic: str, body: bytes, *, check_after_s: float | None = None, **options: Unpack[SendOptions]
    ) -> Transaction:
        """Returns a transaction, for `with`: one message and the block of code that it announces; see
        AsyncTransactionProducer.transaction."""
        made = self.producer.transaction(topic, body, check_after_s=check_after_s, **options)
        return Transaction(made, self._thread)

    def close(self) -> None:
        """Leaves the group. The cluster asks other members of the group about transactions that are still open."""
        if not self.producer.closed:
            self._thread.run(self.producer.close())
        self._checks.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> TransactionProducer:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transaction:
    """One transaction: `begin` (or `with`), then one of `commit`, `rollback` and `leave_to_check`."""

    def __init__(self, transaction: AsyncTransaction, thread: LoopThread) -> None:
        self._transaction = transaction
        self._thread = thread

    @property
    def message_id(self) -> str:
        """The message's id, by which `check` and consumers know it. Raises RuntimeError before the message is
        stored."""
        return self._transaction.message_id

    def begin(self) -> Transaction:
        """Stores the half message. Raises Failed, Unknown, Refused, NotFound; after any of them, the caller must not do
        the work that the message would announce."""
        self._thread.run(self._transaction.begin())
        return self

    def commit(self) -> None:
        """Commits the message; returns when consumers can see it. Raises Failed if a check rolled it back, Unknown if
        the commit was not confirmed in time."""
        self._thread.run(self._transaction.commit())

    def rollback(self) -> None:
        """Rolls the message back: consumers never see it. Raises Failed if a check committed it, and Unknown as
        `commit` does."""
        self._thread.run(self._transaction.rollback())

    def leave_to_check(self) -> None:
        """Leaves the decision to `check`, which the cluster calls later. Meant for a local transaction whose outcome is
        unknown."""

        async def left() -> None:
            self._transaction.leave_to_check()

        self._thread.run(left())

    def __enter__(self) -> Transaction:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))
