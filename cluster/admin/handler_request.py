"""Describes a request as its handler sees it, without the web framework. Also has the functions with which a handler
waits for the log."""

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
"""Name of a query parameter of removals. If it is true, the answer says what would be removed, and nothing is
changed."""
BELOW_THREE = "below_three"
"""Name of a query parameter of removals. If it is true, a removal may leave fewer than three voters."""


class ReadView(msgspec.Struct, frozen=True, kw_only=True):
    """The fields at the beginning of every answer from applied state. The other fields are at least as new as the log
    entry `applied_index`."""

    node: int
    consistency: ReadConsistency
    applied_index: int


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """The fields at the beginning of every answer to a change: the node that answers, and term and index of the log
    entry that made the change."""

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
    """The decoded body, a Struct of the route's type; None if the route has no body."""
    consistency: ReadConsistency
    query: Mapping[str, str] = {}
    """Parameters after the question mark. Other names than those that the route lists were refused before."""
    headers: Mapping[str, str] = {}
    owner: Hashable = None
    """The connection of the request. Work in steps takes turns with that of other connections."""
    asker: str = "an unknown address"
    """The origin of the request in words for people: its user if that is proven, else its address."""
    caller: Caller = STRANGER
    """The author of the request, as far as it is proven."""
    ask_leader: Callable[[Caller, str, str, bytes], Awaitable[tuple[int, bytes]]] = _nobody
    """Sends (caller, method, path, body) to the leader; returns the status and the body of its answer. Only for nodes
    that do not lead."""
    secure: bool = False
    """True if the client's connection is encrypted."""

    def note_change(self, about: str, says: str) -> None:
        """Records a change in this node's events and log, with the person who asked for it. `about` is the object that
        was changed, `says` what happened to it."""
        self.port.observed.events.note_change(about, f"{says}, asked for over HTTP by {self.asker}")

    def check_level(self, needed: int, what: str) -> None:
        """Raises ApiError if the cluster's level is lower than `needed`. `what` names what needs that level, in the
        plural."""
        level = self.port.state.level
        if level < needed:
            why = f"the cluster has level {level}, and {what} need {needed}"
            raise ApiError("refused", why, "raftmq upgrade finalize")

    async def breathe(self) -> None:
        """Waits for the turn of this request's connection. Called between the steps of work that grows with input or
        data."""
        await self.port.services.turns.breathe(self.owner)

    async def done(self, steps: Generator[None, None, T]) -> T:
        """Runs the generator to its end, one step per turn of this request's connection. Returns the generator's
        result."""
        while True:
            await self.breathe()
            try:
                next(steps)
            except StopIteration as end:
                found: T = end.value
                return found


AdminHandler = Callable[[Call], Awaitable[msgspec.Struct | JsonAnswer | Raw | Stream | Pieces]]


async def comes_true(condition: Callable[[], bool], wait_s: float, poll_s: float = 0.01) -> bool:
    """Checks the condition every `poll_s` seconds. Returns True as soon as it holds, False if it does not within
    `wait_s` seconds. Only for rare requests that wait for a state that announces no change."""
    try:
        async with asyncio.timeout(wait_s):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(poll_s)
    except TimeoutError:
        return False
    return True


async def confirm_read(port: AdminPort, *, settles: str = "", may_be_local: bool = True) -> None:
    """Returns once this node's applied state has everything that was acknowledged before. Raises ApiError if no
    majority confirms that in time.

    `settles` names a consumer group whose earlier offset commits must be applied or lost by then
    (`cluster.requests.verb.Verb.settles`); "" for none. `may_be_local`: True if the caller could ask with
    consistency=local instead; the error then suggests that.
    """
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
"""A function that proposes a change. It later calls its argument with the outcome."""


async def decided(start: Start, fix: str = "correct the request") -> tuple[EntryId, list[CommandResult]]:
    """Proposes a change to the log, and waits for its outcome. Returns the id of its entry and the results of its
    commands. Raises ApiError if the change was refused, failed, or has an unknown outcome. `fix` tells the caller what
    to do about a change that no entry can hold."""
    result = await told(start)  # the proposer limits the wait: it reports the outcome in time
    if result.outcome is Outcome.UNKNOWN:
        raise unknown_outcome(result.remark or "the change was proposed and is not decided yet")
    if result.unacceptable:
        raise ApiError("bad_command", f"nothing was changed: {result.remark}", fix)
    if result.outcome is Outcome.FAIL or result.entry_id is None:
        raise ApiError("failed", f"nothing was changed: {result.remark}", "try again")
    return result.entry_id, result.results


async def applied(start: Start) -> tuple[EntryId, CommandResult]:
    """Proposes a change of one command, and waits until it is applied. Returns the id of its entry and the command's
    result. Raises ApiError, also if apply refuses the command."""
    entry_id, (answer,) = await decided(start)
    if not answer.ok:
        code = "not_found" if answer.code == "not_found" else "bad_command"
        raise ApiError(code, str(answer.value), "correct the request; nothing was changed")
    return entry_id, answer
