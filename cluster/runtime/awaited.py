"""Waits for the answer that a service gives to a callback: in a coroutine, or in a generator that needs no task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Question: TypeAlias = Callable[[Callable[[T], None]], object]
"""Asks a service; the callback receives the answer, once."""
Steps: TypeAlias = Generator[Question[Any], Any, T]
"""A generator that yields a question wherever it waits, and goes on with the answer. `carry_out` runs it."""


async def told(ask: Question[T]) -> T:
    """Calls `ask` with a callback, and waits for the first value that the callback receives. A value that comes after
    the caller was cancelled is ignored."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda result: None if answer.done() else answer.set_result(result))
    return await answer


def answer_to(ask: Question[T]) -> Steps[T]:
    """Waits for the answer in a generator (`Steps`): `found = yield from answer_to(ask)`."""
    answer: T = yield ask
    return answer


def carry_out(steps: Steps[None]) -> None:
    """Runs a generator up to its first question, and returns. Each answer resumes the generator at once, in the
    callback that brings the answer. A task would go on in a later turn of the loop; here nothing else happens between
    an answer and the next step."""
    _go_on(steps, None)


def _go_on(steps: Steps[None], answer: object) -> None:
    try:
        ask = steps.send(answer)
    except StopIteration:
        return
    ask(lambda result: _go_on(steps, result))
