"""A request as its handler sees it, free of the web framework; and the two ways to wait for the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from cluster.admin.access import STRANGER, Caller
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.admin.node_interface import AdminPort
from cluster.admin.streamed_json import Pieces
from cluster.replication.outcome import Done, Outcome
from cluster.runtime.awaited import told
from raftlog.types import EntryId
from statemachine.commands import CommandResult

if TYPE_CHECKING:
    from cluster.admin.findings.watch import FindingsWatch

T = TypeVar("T")
ReadConsistency = Literal["local", "linearizable"]
DRY_RUN = "dry_run"
"""Name of a query parameter of removals: only answer what would be removed."""
BELOW_THREE = "below_three"
"""Name of a query parameter of removals: it confirms a removal that leaves fewer than three voters."""


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of every answer from applied state. The fields after them are at least as new as
    `applied_index`."""

    node: int
    consistency: ReadConsistency
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


class JsonAnswer(NamedTuple):
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
    """The decoded body, a Struct of the route; None if the route has no body."""
    consistency: ReadConsistency
    query: Mapping[str, str] = {}
    """Parameters after the question mark; only names that the route knows."""
    headers: Mapping[str, str] = {}
    owner: Hashable = None
    """The connection. Turns of the event loop are shared between connections."""
    asker: str = "an unknown address"
    """The origin of the request, for people: its user if that is proven."""
    caller: Caller = STRANGER
    """The author of the request, as far as it is proven."""
    ask_leader: Callable[[Caller, str, str, bytes], Awaitable[tuple[int, bytes]]] = _nobody
    """Sends (caller, method, path, body) to the leader, and returns status and body of its answer. Used on other nodes
    than the leader."""
    secure: bool = False
    """True if the connection is encrypted."""

    def note_change(self, about: str, says: str) -> None:
        """Records in this node's events and log what was deleted or reset, and who asked for it."""
        self.port.observed.events.note_change(about, f"{says}, asked for over HTTP by {self.asker}")

    def check_level(self, needed: int, what: str) -> None:
        """Raises ApiError if the cluster has a lower level than that which such things need."""
        level = self.port.state.level
        if level < needed:
            why = f"the cluster has level {level}, and {what} need {needed}"
            raise ApiError("refused", why, "raftmq upgrade finalize")

    async def breathe(self) -> None:
        """Waits for this connection's next turn. Called between the steps of work that grows with input or data."""
        await self.port.services.turns.breathe(self.owner)

    async def done(self, steps: Generator[None, None, T]) -> T:
        """Runs work that is cut into steps; returns its result."""
        while True:
            await self.breathe()
            try:
                next(steps)
            except StopIteration as end:
                found: T = end.value
                return found


AdminHandler = Callable[[Call], Awaitable[msgspec.Struct | JsonAnswer | Raw | Stream | Pieces]]


async def comes_true(condition: Callable[[], bool], wait_s: float, poll_s: float = 0.01) -> bool:
    """Checks the condition again and again for at most `wait_s`; returns True once it holds. Only for rare requests,
    and for states that announce no change."""
    try:
        async with asyncio.timeout(wait_s):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(poll_s)
    except TimeoutError:
        return False
    return True


async def confirm_read(port: AdminPort, *, settles: str = "", may_be_local: bool = True) -> None:
    """Returns once reads of the applied state are linearizable. Raises ApiError. `settles`: a consumer group whose
    earlier offset commits are all applied, or lost, before that (`cluster.requests.verb.Verb.settles`); "" for none.
    `may_be_local`: True if the caller could ask with consistency=local instead, which the error then suggests."""
    services = port.services

    def ask(done: Callable[[bool], None]) -> None:
        if settles:
            services.settle_offsets(settles, lambda: services.read_index(done))
        else:
            services.read_index(done)

    try:
        ok = await asyncio.wait_for(told(ask), port.config.send.deadline_ms / 1000)
    except TimeoutError:
        ok = False
    if not ok:
        raise ApiError(
            "no_leader",
            "no majority confirmed that this node still leads",
            "ask again" + (", or with consistency=local for what this node knows" if may_be_local else ""),
        )


Start = Callable[[Done], None]
"""Proposes a change. Its argument is called with the outcome."""


async def decided(start: Start, fix: str = "correct the request") -> tuple[EntryId, list[CommandResult]]:
    """Proposes a change of the log; returns its entry and the results of its commands. Raises ApiError. `fix` tells the
    caller what to do about a change that no entry can hold."""
    result = await told(start)  # the node answers within [send] deadline_ms, and half of it more for copies
    if result.outcome is Outcome.UNKNOWN:
        raise unknown_outcome(result.remark or "the change was proposed and is not decided yet")
    if result.unacceptable:
        raise ApiError("bad_command", f"nothing was changed: {result.remark}", fix)
    if result.outcome is Outcome.FAIL or result.entry_id is None:
        raise ApiError("failed", f"nothing was changed: {result.remark}", "try again")
    return result.entry_id, result.results


async def applied(start: Start) -> tuple[EntryId, CommandResult]:
    """Proposes a change of one command, which apply must not refuse; returns its entry and result. Raises ApiError."""
    entry_id, (answer,) = await decided(start)
    if not answer.ok:
        code = "not_found" if answer.code == "not_found" else "bad_command"
        raise ApiError(code, str(answer.value), "correct the request; nothing was changed")
    return entry_id, answer
