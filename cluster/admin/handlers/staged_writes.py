"""/v1/writes: lists, aborts and forgets staged writes. These are messages that Spark has staged and that are stored in
their queues once they are committed.

The list also has the newest committed write of each name, and the writes to several groups of brokers that wait for a
decision or for a group that has yet to follow one (docs/adr/0109).
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Annotated, Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, ChangeView, ReadView, decided
from cluster.admin.refusals import not_refused
from cluster.admin.route import Route
from cluster.broker.refusal import Reason
from cluster.broker.transactions.staged_writes import Aborted, discard_attempts
from cluster.requests.verb import Serves
from cluster.runtime.request_limits import Unsigned63
from cluster.truth.write_decisions import abort_command
from raftlog.types import FIRST_GROUP
from raftmq_wire.codes import RequestCode
from statemachine.delivery.prepared_writes import Decision, PreparedWrite
from statemachine.delivery.staged_writes import NAME_MAX, PREPARED, Attempt, ForgetWrite

ATTEMPTS_SHOWN, NAMES_SHOWN = 100, 100
"""The most attempts, and the most names of committed writes, in one answer."""
GROUP_WRITES_SHOWN = 100
"""The most prepared writes, and the most decisions, in one answer."""

WriteName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one task to stage messages for a write. Times are log time in ms since 1970."""

    attempt: int
    name: str
    """The name of the write: `query ID` with the id of a streaming query, or `write ID` with the option writeId."""
    write: int
    """The number of the write within its name. For a streaming query, it is Spark's batch id."""
    state: str
    """`open`: messages are staged. `prepared`: it waits for a decision. `committed`: its messages are being copied into
    their queues. `discarded`: they are being removed."""
    messages: int
    left: int
    """Number of staged messages that are neither copied nor removed yet."""
    bytes: int
    """Number of bytes of the messages in `left`."""
    opened_ms: int
    staged_ms: int
    """The time when messages were last staged."""


class CommittedView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest committed write of a name. If this write or an earlier one is sent again, nothing is written."""

    name: str
    write: int
    messages: int
    committed_ms: int


class PreparedView(msgspec.Struct, frozen=True, kw_only=True):
    """A write to several groups of brokers, as a group knows it that has prepared its part. Another group decides to
    commit or to abort it."""

    name: str
    write: int
    state: str
    """`undecided`: no decision has arrived. `committed`: this group has committed its part, but the deciding group has
    not noted that yet."""
    deciding_group: int
    """The number of the group that decides."""
    decider: int
    """The number, in the deciding group, of the attempt whose commit or abort is the decision."""
    attempts: int
    """Number of the write's attempts in this group."""
    messages: int
    """Number of messages in these attempts."""
    prepared_ms: int


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of this group to commit a write to several groups, as long as some of them have not committed their
    parts."""

    name: str
    write: int
    decider: int
    """The number, in this group, of the attempt whose commit is the decision."""
    waiting_groups: list[int]
    """Numbers of the groups that have not reported yet that they have committed their parts."""
    committed_ms: int


class WritesView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/writes`."""

    staged: int
    """Number of staged messages, of all attempts, that are neither copied nor removed yet."""
    bytes: int
    attempts: list[AttemptView]
    """The oldest attempts, at most ATTEMPTS_SHOWN."""
    committed: list[CommittedView]
    """The newest committed write of each name, by name; at most NAMES_SHOWN."""
    prepared: list[PreparedView]
    """The oldest writes of which this group has prepared its part, at most GROUP_WRITES_SHOWN; [] in the first
    group."""
    decisions: list[DecisionView]
    """The oldest decisions that other groups have yet to follow, at most GROUP_WRITES_SHOWN; only the first group has
    any."""
    more: bool
    """True if one of the four lists is not complete."""


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/writes/abort`."""

    name: WriteName
    write: Unsigned63
    dry_run: bool = False
    """True to change nothing, and only return what would be discarded."""


class WriteAborted(ChangeView, frozen=True, kw_only=True):
    """The answer after the staged messages of a write were discarded. A later commit of the write is refused."""

    attempts: int
    messages: int = 0
    """Number of messages that the discarded attempts had staged."""
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/writes/forget`."""

    name: WriteName
    dry_run: bool = False
    """True to change nothing, and only return what would be forgotten."""


class WriteForgotten(ChangeView, frozen=True, kw_only=True):
    """The answer after a name was forgotten. A producer may use the name again, and then begins with its first
    write."""

    write: int
    """The number of the newest committed write that was forgotten."""
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


async def list_writes(call: Call) -> WritesView:
    """Lists staged attempts, committed writes, and unfinished writes to several groups."""
    state = call.port.state
    index = state.applied.index
    attempts = list(itertools.islice(state.writes.attempts(), ATTEMPTS_SHOWN + 1))
    committed = state.writes.committed_writes(NAMES_SHOWN + 1)
    group_writes = state.prepared_writes
    prepared = list(itertools.islice(group_writes.prepared.values(), GROUP_WRITES_SHOWN + 1))
    decisions = list(itertools.islice(group_writes.decisions.values(), GROUP_WRITES_SHOWN + 1))
    return WritesView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=index,
        staged=state.writes.left,
        bytes=state.writes.left_bytes,
        attempts=[_attempt(attempt) for attempt in attempts[:ATTEMPTS_SHOWN]],
        committed=[
            CommittedView(name=one.name, write=one.write, messages=one.count, committed_ms=one.committed_ms)
            for one in committed[:NAMES_SHOWN]
        ],
        prepared=[_prepared(write) for write in prepared[:GROUP_WRITES_SHOWN]],
        decisions=[_decision(decision) for decision in decisions[:GROUP_WRITES_SHOWN]],
        more=len(attempts) > ATTEMPTS_SHOWN
        or len(committed) > NAMES_SHOWN
        or max(len(prepared), len(decisions)) > GROUP_WRITES_SHOWN,
    )


async def abort_write(call: Call) -> WriteAborted:
    """Discards the messages that are staged for a write that nobody will commit."""
    wanted: AbortRequest = call.body
    abort = partial(discard_attempts, call.port.services, wanted.name, wanted.write)
    start = partial(abort, owner=("abort", wanted.name, wanted.write), dry_run=wanted.dry_run)
    found: Aborted = await not_refused(
        start, "correct the request", "try again", {Reason.INVALID: "bad_command"}, lead="nothing was changed: "
    )
    if not found.messages and not found.attempts:
        raise ApiError("not_found", f"nothing is staged for write {wanted.write} of {wanted.name!r}", "GET /v1/writes")
    return WriteAborted(
        node=call.port.config.node.id,
        term=found.entry.term,
        index=found.entry.index,
        attempts=found.attempts,
        messages=found.messages,
        dry_run=wanted.dry_run,
    )


async def forget_write(call: Call) -> WriteForgotten:
    """Forgets the committed writes of a name."""
    wanted: ForgetRequest = call.body
    newest = call.port.state.writes.committed(wanted.name)
    if newest is None:  # checked first, because the cluster's level may not have the command yet
        raise ApiError("not_found", f"no write of {wanted.name!r} is committed", "GET /v1/writes lists the names")
    node = call.port.config.node.id
    if wanted.dry_run:
        term, index = call.port.state.applied
        return WriteForgotten(node=node, term=term, index=index, write=newest.write, dry_run=True)
    entry_id, (answer,) = await decided(partial(call.port.services.propose, [ForgetWrite(wanted.name)]))
    if answer.code == PREPARED:
        what = f"write {answer.value} of {wanted.name!r} is prepared and waits for its decision; nothing was forgotten"
        raise ApiError("refused", what, f"{abort_command(wanted.name, int(answer.value))}    (or wait)")
    if not answer.ok:
        raise ApiError("not_found", str(answer.value), "GET /v1/writes lists the names")
    return WriteForgotten(node=node, term=entry_id.term, index=entry_id.index, write=answer.value)


def _attempt(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt=attempt.number,
        name=attempt.name,
        write=attempt.write,
        state=attempt.state.name.lower(),
        messages=attempt.count,
        left=attempt.left,
        bytes=attempt.left_bytes,
        opened_ms=attempt.opened_ms,
        staged_ms=attempt.staged_ms,
    )


def _prepared(write: PreparedWrite) -> PreparedView:
    return PreparedView(
        name=write.name,
        write=write.write,
        state=write.state.name.lower(),
        deciding_group=FIRST_GROUP,
        decider=write.decider,
        attempts=write.attempts,
        messages=write.messages,
        prepared_ms=write.prepared_ms,
    )


def _decision(decision: Decision) -> DecisionView:
    return DecisionView(
        name=decision.name,
        write=decision.write,
        decider=decision.decider,
        waiting_groups=list(decision.groups),
        committed_ms=decision.committed_ms,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/writes",
        list_writes,
        WritesView,
        route.page(ATTEMPTS_SHOWN + NAMES_SHOWN + GROUP_WRITES_SHOWN),
        route_rights.CLUSTER_GET,
        Serves.READ,
    ),
    Route.of_verb(
        "POST",
        "/v1/writes/abort",
        abort_write,
        WriteAborted,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.ABORT_WRITE, name="body.name"),
        AbortRequest,
    ),
    Route(
        "POST",
        "/v1/writes/forget",
        forget_write,
        WriteForgotten,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        ForgetRequest,
    ),
)
