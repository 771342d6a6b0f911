"""TransactionProducer: AsyncTransactionProducer for threads. `check` runs in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Unpack

from raftmq.client.loop_thread import LoopThread
from raftmq.client.message import Message, SendOptions
from raftmq.client.producing.transaction_end import Resolution
from raftmq.client.producing.transaction_producer import AsyncTransaction, AsyncTransactionProducer
from raftmq.client.view import ClusterView

Check = Callable[[Message], Resolution]
"""A function that returns the outcome of the local transaction that the message tells of; called in any program of the
group, in a thread of its own, one message at a time."""


class TransactionProducer:
    """A member of a producer group, for `with`: sends transactions, from any thread, and answers for those of the whole
    group."""

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
        """Makes itself known, so that it can be asked. Raises Refused for a group name that is none, Unreachable."""
        self._thread.run(self.producer.open())
        return self

    def transaction(
        self, topic: str, body: bytes, *, check_after_s: float | None = None, **options: Unpack[SendOptions]
    ) -> Transaction:
        """One message and the block that it stands for, for `with`; see AsyncTransactionProducer.transaction."""
        made = self.producer.transaction(topic, body, check_after_s=check_after_s, **options)
        return Transaction(made, self._thread)

    def close(self) -> None:
        """Leaves the group. What is open is for the others of the group to answer."""
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
        """The message's id, by which `check` and consumers know it. Raises RuntimeError before it is stored."""
        return self._transaction.message_id

    def begin(self) -> Transaction:
        """Stores the half message. Raises Failed, Unknown, Refused, NotFound: then nothing may be done that the message
        would tell of."""
        self._thread.run(self._transaction.begin())
        return self

    def commit(self) -> None:
        """The message counts: returns when consumers can see it. Raises Failed if it was rolled back by a check,
        Unknown if nobody confirmed the commit in time."""
        self._thread.run(self._transaction.commit())

    def rollback(self) -> None:
        """The message does not count. Raises Failed if it was committed by a check, Unknown as `commit`."""
        self._thread.run(self._transaction.rollback())

    def leave_to_check(self) -> None:
        """Decides nothing: `check` does, when the cluster asks. For a local transaction with an unknown outcome."""

        async def left() -> None:
            self._transaction.leave_to_check()

        self._thread.run(left())

    def __enter__(self) -> Transaction:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))
