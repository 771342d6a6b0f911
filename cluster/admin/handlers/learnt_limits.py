"""/v1/quotas/learnt: imports, shows and removes learnt limits. These are the rates below which topics usually stay. In
an overload they decide whose sends are refused first (docs/adr/0117-a-learnt-limit-decides-who-is-cut-first.md).

An import comes in parts (PUT /v1/quotas/learnt/{digest}); then one request puts the whole file in force.
"""

from __future__ import annotations

import heapq
from typing import Annotated, Final

import msgpack
import msgspec
from msgspec import Meta

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError, done_in_part
from cluster.admin.handler_request import DRY_RUN, Call, ChangeView, applied, decided
from cluster.admin.request_parsing import flag_of
from cluster.admin.route import Route
from cluster.replication.learnt_use import TopicUse
from cluster.requests.verb import Serves
from raftlog.types import EntryId
from raftlog.work import charge
from raftmq_wire.learnt_file import DAY, TOPICS_MAX, WEEK, Digest, LearntOrigin, digests
from raftmq_wire.names import NAME
from statemachine.access.learnt_limits import (
    SWEPT_MAX,
    TOPICS_PER_COMMAND,
    Hours,
    LearntHead,
    LearntMode,
    PutLearnt,
    SetLearnt,
    SweepLearnt,
    import_of,
)
from statemachine.commands import CommandResult
from statemachine.levels import QUOTAS_LEVEL

USES_SHOWN: Final = 20
DAY_MS: Final = 86_400_000
DAYS_MAX: Final = 366
ROWS_PER_STEP: Final = 50
UNITS_PER_ROW: Final = 15
AGAIN: Final = "raftmq quota import FILE"


class TopicLearnt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The usual limits of a topic per second: 24 numbers for the hours of a day, or 168 for the hours of a week from
    Monday on, UTC. 0 means no limit."""

    topic: Annotated[str, Meta(min_length=1, max_length=255)]
    messages: Hours
    bytes: Hours
    """Limits of the bytes of message bodies per second."""


class LearntPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `PUT /v1/quotas/learnt/{digest}`: some of the topics of the file with that digest."""

    topics: Annotated[list[TopicLearnt], Meta(min_length=1, max_length=TOPICS_PER_COMMAND)]
    begins: bool = False
    """True in the first part of an import. Parts that other imports have left behind are then removed first."""


class LearntPartTaken(ChangeView, frozen=True, kw_only=True):
    """The answer after a part of a file was stored."""

    there: int
    """Number of the file's topics that are stored now."""


class LearntRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `PUT /v1/quotas/learnt`: it puts the file in force whose topics were all sent before."""

    digest: Digest
    origin: LearntOrigin
    count: Annotated[int, Meta(ge=1, le=TOPICS_MAX)]
    """The number of topics in the file."""
    mode: LearntMode = LearntMode.SHADOW
    """`shadow`: the messages over the limits are only counted. `on`: the limits also decide whose sends are refused
    first in an overload."""
    valid_days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] | None = None
    """Number of days for which the limits are in force; null: until the date of expiry in the file."""
    dry_run: bool = False
    """True to change nothing, and only say if the file would be accepted. Its topics need not have been sent."""


class LearntChanged(ChangeView, frozen=True, kw_only=True):
    """The answer after a file came into force, or the limits were removed."""

    changed: bool
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


class LearntInForce(msgspec.Struct, frozen=True, kw_only=True):
    """The file that is in force."""

    digest: str
    mode: LearntMode
    topics: int
    made_ms: int
    first_ms: int
    last_ms: int
    """Store time of the last message from which the limits were learnt, in ms since 1970; `first_ms` is that of the
    first."""
    ends_ms: int
    """Log time in ms since 1970 from which on the limits are no longer in force."""
    expired: bool
    changed_ms: int
    """Log time in ms since 1970 at which the file came into force."""
    changed_by: str


class LearntTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with learnt limits that got messages since the answering node became the leader."""

    topic: str
    messages_per_s: float
    """Mean number of messages per second in the last ten seconds or more."""
    limit_messages: int
    limit_bytes: int
    """The limit of this hour in bytes per second; 0: none. `limit_messages` is that of messages."""
    seen: int
    """Number of messages that came since the node became the leader."""
    over: int
    """Number of those messages that were over the limits. If the limits were quotas, these would have been refused."""
    cut: int
    """Number of messages of this topic that were refused in an overload, while those of other topics were still
    taken."""
    demoted: bool
    """True if sends to this topic are refused first now."""


class LearntView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/quotas/learnt`."""

    node: int
    group: int
    in_force: LearntInForce | None
    seen: int
    over: int
    """Sum of `over` of all topics; `seen` is the sum of `seen`."""
    topics: list[LearntTopic]
    """At most USES_SHOWN topics: those with the largest `cut` first, then those with the largest `over`."""


async def get_learnt(call: Call) -> LearntView:
    """Returns the learnt limits in force, and the topics that exceed them most."""
    port = call.port
    uses, limits = list(port.limits.learnt.all()), port.state.learnt.in_force
    charge(1 + len(uses))
    shown = heapq.nsmallest(USES_SHOWN, uses, key=lambda use: (-use.cut, -use.over, -use.seen, use.topic))
    return LearntView(
        node=port.config.node.id,
        group=port.config.cluster.group,
        in_force=None if limits is None else _view(limits.head, port.services.log_time_ms()),
        seen=sum(use.seen for use in uses),
        over=sum(use.over for use in uses),
        topics=[_use(use, demoted=use.topic_id in port.limits.learnt.demoted) for use in shown],
    )


def _view(head: LearntHead, log_ms: int) -> LearntInForce:
    return LearntInForce(expired=head.ends_ms <= log_ms, **head._asdict())


def _use(use: TopicUse, *, demoted: bool) -> LearntTopic:
    return LearntTopic(
        topic=use.topic,
        messages_per_s=round(use.rate, 1),
        limit_messages=use.messages,
        limit_bytes=use.bytes,
        seen=use.seen,
        over=use.over,
        cut=use.cut,
        demoted=demoted,
    )


async def put_part(call: Call) -> LearntPartTaken:
    """Stores some topics of a file that is not in force yet."""
    part: LearntPart = call.body
    digest = call.params["digest"]
    try:
        msgspec.convert(digest, Digest)
    except msgspec.ValidationError:
        raise ApiError("bad_request", f"{digest:.100} is no SHA-256", "64 hexadecimal digits, as in the file") from None
    call.check_level(QUOTAS_LEVEL, "learnt limits")
    for each in part.topics:
        await call.breathe()
        if not NAME.fullmatch(each.topic):
            raise ApiError("bad_field", f"topics: {each.topic!r:.100} is no name of a topic", AGAIN)
        if len(each.messages) not in (DAY, WEEK) or len(each.bytes) != len(each.messages):
            raise ApiError("bad_field", f"topics: {each.topic} has neither {DAY} nor {WEEK} hours", AGAIN)
    if part.begins:
        await _sweep(call)
    command = PutLearnt(import_of(digest), [(each.topic, each.messages, each.bytes) for each in part.topics])
    (term, index), result = await _decided(call, command)
    return LearntPartTaken(node=call.port.config.node.id, term=term, index=index, there=result.value)


async def set_learnt(call: Call) -> LearntChanged:
    """Puts a file of learnt limits in force whose topics were all sent before."""
    wanted: LearntRequest = call.body
    port, origin = call.port, wanted.origin
    call.check_level(QUOTAS_LEVEL, "learnt limits")
    own, now_ms = port.status().cluster_id, port.services.log_time_ms()
    if origin.cluster != own:
        why = f"the file was learnt from cluster {origin.cluster}, and this is {own}"
        raise ApiError("refused", why, "raftmq spark traffic --limits FILE, of this cluster")
    if origin.expires_ms <= now_ms:
        days = (now_ms - origin.expires_ms) // DAY_MS
        why = f"the file has expired {days} days ago"
        raise ApiError("refused", why, "raftmq spark traffic --limits FILE learns it anew")
    ends_ms = origin.expires_ms if wanted.valid_days is None else now_ms + wanted.valid_days * DAY_MS
    head = LearntHead(
        wanted.digest,
        wanted.count,
        wanted.mode,
        origin.made_ms,
        origin.first_ms,
        origin.last_ms,
        ends_ms,
        now_ms,
        call.asker,
    )
    known = port.state.learnt.in_force
    entry = port.state.applied
    if wanted.dry_run:
        changed = known is None or known.head[:-2] != head[:-2]
        return LearntChanged(
            node=port.config.node.id, term=entry.term, index=entry.index, changed=changed, dry_run=True
        )
    await _check_digest(call, wanted)
    (term, index), result = await _decided(call, SetLearnt(head.row()))
    if result.value:
        call.note_change("learnt limits", f"those of {wanted.count} topics are in force, mode {wanted.mode}")
    await _sweep_after(call, "the limits are in force")
    return LearntChanged(node=port.config.node.id, term=term, index=index, changed=result.value)


async def delete_learnt(call: Call) -> LearntChanged:
    """Removes the learnt limits in force, and all parts of files that are not in force."""
    port = call.port
    call.check_level(QUOTAS_LEVEL, "learnt limits")
    entry, changed = port.state.applied, port.state.learnt.has_rows
    term, index = entry.term, entry.index
    dry_run = flag_of(call.query, DRY_RUN)
    if changed and not dry_run:
        (term, index), _ = await _decided(call, SetLearnt(None))
        call.note_change("learnt limits", "they were taken away")
        await _sweep_after(call, "the limits were taken away")
    return LearntChanged(node=port.config.node.id, term=term, index=index, changed=changed, dry_run=dry_run)


async def _check_digest(call: Call, wanted: LearntRequest) -> None:
    """Raises ApiError if the stored topics of the file are not complete, or do not give the digest of the request."""
    rows = call.port.state.learnt.rows_of(wanted.digest)
    charge(1 + len(rows))
    digest = ""
    if len(rows) == wanted.count:
        unpacked = ((topic, *msgpack.unpackb(row)) for topic, row in rows)
        for at, digest in enumerate(digests(wanted.origin, unpacked)):  # noqa: B007 - the last one counts
            charge(UNITS_PER_ROW)
            if at % ROWS_PER_STEP == 0:
                await call.breathe()
    if digest != wanted.digest:
        why = f"{len(rows)} of {wanted.count} topics have come, or not as the file has them: nothing was changed"
        raise ApiError("refused", why, "import it again; another import may have come in between")


async def _decided(call: Call, command: PutLearnt | SetLearnt) -> tuple[EntryId, CommandResult]:
    entry_id, (result,) = await decided(lambda done: call.port.services.propose([command], done))
    if not result.ok:
        code = "refused" if result.code in ("conflict", "refused") else "bad_command"
        raise ApiError(code, str(result.value), AGAIN)
    return entry_id, result


async def _sweep_after(call: Call, change: str) -> None:
    """Calls `_sweep` after a change was made. Raises ApiError, which says so, if not all could be removed."""
    try:
        await _sweep(call)
    except ApiError as error:
        raise done_in_part(f"{change}, and parts of other files are left: {error.message}", "ask again") from None


async def _sweep(call: Call) -> None:
    """Removes the stored topics of files that are not in force, at most SWEPT_MAX with each log entry."""
    while call.port.state.learnt.coming:
        _, result = await applied(lambda done: call.port.services.propose([SweepLearnt(SWEPT_MAX)], done))
        if not result.value:
            return


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/quotas/learnt",
        get_learnt,
        LearntView,
        route.page(USES_SHOWN),
        route_rights.CLUSTER_GET,
        Serves.LEADER,
    ),
    Route(
        "PUT",
        "/v1/quotas/learnt",
        set_learnt,
        LearntChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        LearntRequest,
    ),
    Route(
        "PUT",
        "/v1/quotas/learnt/{digest}",
        put_part,
        LearntPartTaken,
        route.page(TOPICS_PER_COMMAND),
        route_rights.SUPER,
        Serves.LEADER,
        LearntPart,
    ),
    Route(
        "DELETE",
        "/v1/quotas/learnt",
        delete_learnt,
        LearntChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        asks=(DRY_RUN,),
    ),
)
