"""One request as a handler sees it, free of the web framework; and the two ways to wait for the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from cluster.admin.access import STRANGER, Caller
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.pieces import Pieces
from cluster.admin.port import AdminPort
from cluster.replication.outcome import Done, Outcome
from raftlog.types import EntryId
from statemachine.commands import CommandResult

if TYPE_CHECKING:
    from cluster.admin.findings.watch import FindingsWatch

T = TypeVar("T")
Consistency = Literal["local", "linearizable"]
DRY_RUN = "dry_run"
"""Query of a removal: only answer what would go."""
BELOW_THREE = "below_three"
"""Query of a removal that leaves fewer than three voters: it is meant."""


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of every answer from applied state. The fields after them are at least as new as
    `applied_index`."""

    node: int
    consistency: Consistency
    applied_index: int


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of every answer to a change: the log entry (term, index) that made it."""

    node: int
    term: int
    index: int


class Raw(NamedTuple):
    """An answer that is not JSON."""

    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class Stream(NamedTuple):
    """An answer that goes on until the client or the node ends it."""

    content_type: str
    parts: AsyncIterator[bytes]


class Answer(NamedTuple):
    """A JSON answer with a status other than 200."""

    status: int
    view: msgspec.Struct
    headers: Mapping[str, str] = {}


async def _nobody(caller: Caller, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    raise ApiError("no_leader", "no leader is known", "ask again; nothing was changed")


class Call(NamedTuple):
    """A request as its handler gets it."""

    port: AdminPort
    watch: FindingsWatch
    params: Mapping[str, str]
    """Parameters in the path."""
    body: Any
    """The route's body Struct, None if it has none."""
    consistency: Consistency
    query: Mapping[str, str] = {}
    """Parameters after the question mark: names that the route knows."""
    headers: Mapping[str, str] = {}
    owner: Hashable = None
    """The connection: turns of the event loop are shared between connections."""
    asker: str = "an unknown address"
    """The origin of the request, for people: its user if one is proven."""
    caller: Caller = STRANGER
    """The author of the request, as far as it is proven."""
    ask_leader: Callable[[Caller, str, str, bytes], Awaitable[tuple[int, bytes]]] = _nobody
    """(caller, method, path, body) -> status and body of the leader's answer. Another node leads."""
    secure: bool = False
    """The connection is encrypted."""

    def note_change(self, about: str, says: str) -> None:
        """Leaves a trace, in the events and the output of this node, of what was deleted or reset, and from where."""
        self.port.events.note_change(about, f"{says}, asked for over HTTP by {self.asker}")

    async def breathe(self) -> None:
        """Called between the steps of work that grows with input or data: waits until it is this connection's turn."""
        await self.port.services.turns.breathe(self.owner)

    async def done(self, steps: Generator[None, None, T]) -> T:
        """Does work that is cut into steps; returns what it comes to."""
        while True:
            await self.breathe()
            try:
                next(steps)
            except StopIteration as end:
                found: T = end.value
                return found


Handler = Callable[[Call], Awaitable[msgspec.Struct | Answer | Raw | Stream | Pieces]]


async def told(ask: Callable[[Callable[[T], None]], object]) -> T:
    """Asks, and waits for what the callback is told first."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda result: None if answer.done() else answer.set_result(result))
    return await answer


async def comes_true(condition: Callable[[], bool], wait_s: float, poll_s: float = 0.01) -> bool:
    """Looks again and again, for at most `wait_s`: for requests that are rare, and states that announce no change."""
    try:
        async with asyncio.timeout(wait_s):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(poll_s)
    except TimeoutError:
        return False
    return True


async def confirm_read(port: AdminPort) -> None:
    """Returns when applied state answers linearizably. Raises ApiError."""
    try:
        ok = await asyncio.wait_for(told(port.services.read_index), port.config.send.deadline_ms / 1000)
    except TimeoutError:
        ok = False
    if not ok:
        raise ApiError(
            "no_leader",
            "no majority confirmed that this node still leads",
            "ask again, or with consistency=local for what this node knows",
        )


Start = Callable[[Done], None]
"""Proposes a change; the argument is called with its outcome."""


async def decided(start: Start, fix: str = "correct the request") -> tuple[EntryId, list[CommandResult]]:
    """Starts a change of the log; returns the entry and what apply answered to its commands. Raises ApiError; `fix`:
    what the caller can do about a change that no entry can hold."""
    result = await told(start)  # the node answers at the latest after [send] deadline_ms
    if result.outcome is Outcome.UNKNOWN:
        raise unknown_outcome(result.remark or "the change was proposed and is not decided yet")
    if result.unacceptable:
        raise ApiError("bad_command", f"nothing was changed: {result.remark}", fix)
    if result.outcome is Outcome.FAIL or result.entry_id is None:
        raise ApiError("failed", f"nothing was changed: {result.remark}", "try again")
    return result.entry_id, result.results


async def applied(start: Start) -> tuple[EntryId, CommandResult]:
    """Starts a change of one command, which apply must not refuse. Raises ApiError."""
    entry_id, (answer,) = await decided(start)
    if not answer.ok:
        code = "not_found" if answer.code == "not_found" else "bad_command"
        raise ApiError(code, str(answer.value), "correct the request; nothing was changed")
    return entry_id, answer
