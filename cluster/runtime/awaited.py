"""Waits for what a service tells a callback: in a coroutine, or in a straight function that needs no task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Question: TypeAlias = Callable[[Callable[[T], None]], object]
"""Asks a service; the callback receives the answer, once."""
Steps: TypeAlias = Generator[Question[Any], Any, T]
"""A straight function: it yields a question wherever it waits, and goes on with the answer."""


async def told(ask: Question[T]) -> T:
    """Calls `ask` with a callback, and waits for the first value that the callback receives. A value that comes after
    the caller was cancelled is ignored."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda result: None if answer.done() else answer.set_result(result))
    return await answer


def answer_to(ask: Question[T]) -> Steps[T]:
    """Waits for the answer in a straight function: `found = yield from answer_to(ask)`."""
    answer: T = yield ask
    return answer


def carry_out(steps: Steps[None]) -> None:
    """Runs a generator up to its first question. Each answer resumes it at once, in the callback that brings the
    answer, and not in a later turn as a task would: so nothing else happens between an answer and what follows from
    it."""
    _go_on(steps, None)


def _go_on(steps: Steps[None], answer: object) -> None:
    try:
        ask = steps.send(answer)
    except StopIteration:
        return
    ask(lambda result: _go_on(steps, result))
