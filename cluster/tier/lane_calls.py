"""Calls of the tier that read this node's disk: each is done on a lane, and awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

from cluster.runtime.context import NodeContext
from cluster.runtime.lanes import LaneRunner

T = TypeVar("T")


class _Job(NamedTuple):
    number: int
    do: Callable[[], object]


class _Done(NamedTuple):
    number: int
    value: object
    error: Exception | None


class LaneCalls:
    """Event loop only. Calls are done, and answered, in order."""

    def __init__(self, context: NodeContext, name: str, raises: type[Exception]) -> None:
        """`name`: of the lane. `raises`: what a call may raise, and its caller gets; anything else stops the node."""
        self._context = context
        self._name = name
        self._raises = raises
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._number = 0
        self._runner: LaneRunner[_Job] | None = None

    def start(self) -> None:
        """Before the first call."""
        context, lane = self._context, _Lane(self._raises)
        self._runner = context.environment.runner(self._name, lane, context.loop, self._on_done, context.fail)

    async def close(self) -> None:
        """Returns when the lane is done with what it was doing."""
        if self._runner is not None:
            await self._context.loop.run_in_executor(None, self._runner.close)

    async def ask(self, do: Callable[[], T]) -> T:
        """What `do` returns, or raises, on the lane."""
        assert self._runner is not None
        self._number += 1
        waiter: asyncio.Future[object] = self._context.loop.create_future()
        self._waiting[self._number] = waiter
        self._runner.submit(_Job(self._number, do))
        return cast(T, await waiter)

    def _on_done(self, answers: list[_Done]) -> None:
        for answer in answers:
            waiter = self._waiting.pop(answer.number)
            if waiter.done():
                continue  # who asked was cancelled
            if answer.error is not None:
                waiter.set_exception(answer.error)
            else:
                waiter.set_result(answer.value)


class _Lane:
    idle_after_s: float | None = None

    def __init__(self, raises: type[Exception]) -> None:
        self._raises = raises

    def drain(self, batch: Sequence[_Job]) -> list[_Done]:
        return [self._done(job) for job in batch]

    def idle(self) -> None:
        """Nothing to do."""

    def _done(self, job: _Job) -> _Done:
        try:
            return _Done(job.number, job.do(), None)
        except self._raises as error:
            return _Done(job.number, None, error)
