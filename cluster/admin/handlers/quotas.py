"""/v1/quotas: sets and lists how much a user, an address or a topic may use, and shows who exceeds it
(docs/adr/0115-a-send-over-its-quota-waits-before-it-is-proposed.md)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import DRY_RUN, Call, ChangeView, ReadView, applied
from cluster.admin.pagination import PAGE_QUERY, Page, after_of, limit_of, neighbour
from cluster.admin.request_parsing import flag_of
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.flow.quota_limits import LIMIT_MAX, misplaced, told
from cluster.flow.quota_rules import Refusals
from cluster.requests.verb import Serves
from raftlog.work import charge
from statemachine.access.quotas import (
    EVERYBODY,
    QUOTAS_MAX,
    Quota,
    SetQuotas,
    Subject,
    parse_subject,
)
from statemachine.levels import QUOTAS_LEVEL
from statemachine.rows.sorted_map import SortedMap

SUBJECT_LENGTH_MAX: Final = 400
PER_REQUEST: Final = 400
"""The most quotas of one request: with usual names and one or two limits of each they are less than the largest body
(`cluster.admin.request_parsing.BODY_BYTES_MAX`), and less than one command may have."""
OWNERS_SHOWN: Final = 20
UNITS_PER_OWNER: Final = 1
OWNERS_PER_STEP: Final = 250

SubjectText = Annotated[str, Meta(min_length=1, max_length=SUBJECT_LENGTH_MAX)]
Rate = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]


class QuotaLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a subject. null means no limit."""

    send_messages: Rate | None = None
    """The most messages that the subject may send per second."""
    send_bytes: Rate | None = None
    """The most bytes of send requests per second."""
    pull_messages: Rate | None = None
    """The most messages that the subject may pull per second."""
    pull_bytes: Rate | None = None
    """The most bytes of messages that the subject may pull per second."""
    requests: Rate | None = None
    """The most unanswered send requests at once."""
    connections: Rate | None = None
    """The most connections per minute that the subject may open to each node."""
    new_topics: Rate | None = None
    """The most topics that the subject may create per minute."""
    new_groups: Rate | None = None
    """The most consumer groups that the subject may create per minute."""
    backlog_bytes: Rate | None = None
    """The most bytes of messages that the subject may have stored."""

    def as_row(self) -> dict[str, int]:
        """Returns name -> value of the limits that are set."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """The quota of a subject."""

    subject: str
    """`user=NAME`, `user=NAME,topic=NAME`, `address=IP` or `topic=NAME`. `*` instead of a name or an address stands for
    everybody who has no quota of their own."""
    limits: QuotaLimits
    changed_ms: int
    """Log time of the quota's last change, in ms since 1970."""
    changed_by: str
    exists: bool = True
    """False if the user or the topic does not exist now. The quota applies once it does."""


class OfQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one limit by one owner: the user, address or topic that it restricts. Only owners that have asked for
    something since the answering node became the leader are listed."""

    owner: str
    """The user, address or topic, written like a subject, such as `user=NAME`."""
    subject: str
    """The subject whose quota applies to the owner; it may contain `*`."""
    limit: str
    """The name of the limit: a field of QuotaLimits."""
    refused: int
    """The number of requests that were refused because of the limit."""
    refused_ms_ago: int | None
    """Milliseconds since the last refusal; null if there was none."""
    value: int
    """The value of the limit, in its unit."""
    asked_per_s: float | None
    """The mean amount per second that the owner asked for at this node in the last seconds, in the unit of the limit;
    null if the limit is not a rate."""


class QuotasView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/quotas`: the quotas by subject, ascending."""

    quotas: list[QuotaView]
    next: str | None = None
    """The value of `after` for the next page; null on the last page."""


class OverQuotasView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/quotas/refused`."""

    node: int
    group: int
    waiting: int
    """Number of sends that wait at the answering leader because of a quota."""
    waiting_bytes: int
    owners: list[OfQuota]
    """The 20 limits because of which most requests were refused, the most first."""
    busiest: list[OfQuota]
    """The 20 limits of which the largest part was asked for in the last seconds, the largest part first."""


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """A subject and its new limits."""

    subject: SubjectText
    limits: QuotaLimits | None
    """The new limits, which replace all limits of the subject; null removes the quota."""


class QuotasRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/quotas`. All changes are made with one log entry, or none is made."""

    quotas: Annotated[list[QuotaChange], Meta(min_length=1, max_length=PER_REQUEST)]
    dry_run: bool = False
    """True to change nothing, and only return what would change."""


class QuotasChanged(ChangeView, frozen=True, kw_only=True):
    """The answer to a change of quotas: the subjects whose quotas were changed."""

    changed: list[str]
    dry_run: bool = False
    """True if nothing was changed, by a dry run. `term` and `index` are then those of the last applied entry."""


async def get_quotas(call: Call) -> Pieces:
    """Lists the quotas by subject, a page of them."""
    state = call.port.state
    applied_index, known = state.applied.index, state.quotas.by_subject
    after, limit = after_of(call) or "", limit_of(call)
    charge(1 + len(known) // 50)
    subjects = sorted(subject for subject in known if subject > after)
    page, shown = Page(call, limit), list[str]()
    for subject in subjects:
        if page.full:
            break
        await page.turn()
        if not page.add(_view(call, subject, known[subject])):
            break
        shown.append(subject)
    view = QuotasView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied_index,
        quotas=[],
        next=shown[-1] if shown and len(shown) < len(subjects) else None,
    )
    return page.answer(view, "quotas")


async def get_refused(call: Call) -> OverQuotasView:
    """Lists the users, addresses and topics that exceed a quota at this leader."""
    port = call.port
    paced, now_ms = port.limits.paced, port.services.monotonic_ms()
    over: list[Refusals] = []
    busiest: list[Refusals] = []
    rules = paced.buckets.rules
    all_known = rules.refusals()
    for at in range(0, len(all_known), OWNERS_PER_STEP):
        known = list(rules.in_force(all_known[at : at + OWNERS_PER_STEP]))
        charge(OWNERS_PER_STEP * UNITS_PER_OWNER)
        over = nsmallest(OWNERS_SHOWN, over + [each for each in known if each.refused], key=_by_refused)
        busiest = nsmallest(OWNERS_SHOWN, busiest + known, key=_by_demand)
        await call.breathe()
    return OverQuotasView(
        node=port.config.node.id,
        group=port.config.cluster.group,
        waiting=len(paced),
        waiting_bytes=paced.size,
        owners=[_of(each, now_ms) for each in over],
        busiest=[_of(each, now_ms) for each in busiest],
    )


def _by_refused(each: Refusals) -> tuple[int, str]:
    return -each.refused, each.owner


def _by_demand(each: Refusals) -> tuple[float, str, str]:
    return -(each.asked_per_s or 0.0) / each.rule.value, each.owner, each.rule.limit


def _of(each: Refusals, now_ms: int) -> OfQuota:
    asked = each.asked_per_s
    return OfQuota(
        owner=each.owner,
        subject=each.subject,
        limit=each.rule.limit,
        value=each.rule.value,
        refused=each.refused,
        refused_ms_ago=now_ms - each.refused_ms if each.refused else None,
        asked_per_s=None if asked is None else round(asked, 1),
    )


async def set_quotas(call: Call) -> QuotasChanged:
    """Sets or removes quotas of several subjects."""
    wanted: QuotasRequest = call.body
    return await _set(call, [(each.subject, each.limits) for each in wanted.quotas], dry_run=wanted.dry_run)


async def delete_quota(call: Call) -> QuotasChanged:
    """Removes the quota of a subject."""
    subject = str(_parsed(call.params["subject"]))
    known = call.port.state.quotas.by_subject
    if subject not in known:
        charge(1 + len(known) // 50)
        match = await neighbour(call, subject, SortedMap((each, None) for each in known))
        hint = f"did you mean {match}?" if match else "GET /v1/quotas lists all"
        raise ApiError("not_found", f"there is no quota of {subject}", hint)
    return await _set(call, [(subject, None)], dry_run=flag_of(call.query, DRY_RUN))


async def _set(call: Call, wanted: Iterable[tuple[str, QuotaLimits | None]], *, dry_run: bool) -> QuotasChanged:
    state = call.port.state
    call.check_level(QUOTAS_LEVEL, "quotas")
    rows: dict[str, dict[str, int] | None] = {}
    for text, limits in wanted:
        await call.breathe()
        parsed = _parsed(text)
        subject = str(parsed)
        if subject in rows:
            raise ApiError("bad_field", f"quotas: {subject} is there twice", "give each subject once")
        rows[subject] = None if limits is None else limits.as_row()
        if limits is not None and not rows[subject]:
            raise ApiError("bad_field", f"quotas: {subject} has no limit", "give one, or null to take the quota away")
        if limits is not None and (wrong := misplaced(parsed, limits.as_row())):
            raise ApiError("bad_field", f"quotas: {wrong}", "give it to another subject")
    known = state.quotas.by_subject
    changed = [subject for subject, limits in rows.items() if _limits_of(known.get(subject)) != limits]
    if len((known.keys() - rows.keys()) | {subject for subject, limits in rows.items() if limits}) > QUOTAS_MAX:
        why = f"a cluster has at most {QUOTAS_MAX} quotas"
        raise ApiError("refused", why, "* in place of a name is a quota of everybody who has none of his own")
    entry = state.applied
    term, index = entry.term, entry.index
    if not dry_run and changed:
        command = SetQuotas(list(rows.items()), call.port.services.log_time_ms(), call.asker)
        (term, index), _ = await applied(lambda done: call.port.services.propose([command], done))
        for subject in changed:
            call.note_change(f"quota {subject}", _told(rows[subject]))
    return QuotasChanged(node=call.port.config.node.id, term=term, index=index, changed=changed, dry_run=dry_run)


def _parsed(text: str) -> Subject:
    try:
        return parse_subject(text)
    except ValueError as error:
        raise ApiError(
            "bad_field", str(error), "such as user=alice, user=*, topic=orders or address=10.0.0.7"
        ) from None


def _limits_of(quota: Quota | None) -> dict[str, int] | None:
    return None if quota is None else dict(quota.limits)


def _told(limits: dict[str, int] | None) -> str:
    if limits is None:
        return "the quota was taken away"
    return f"the quota is {told(limits)}"


def _view(call: Call, subject: str, quota: Quota) -> QuotaView:
    named, state = parse_subject(subject), call.port.state
    users, topics = state.access.users, state.topics
    exists = (named.user in ("", EVERYBODY) or users.get(named.user) is not None) and (
        named.topic in ("", EVERYBODY) or topics.get(named.topic) is not None
    )
    limits: dict[str, Any] = {name: quota.limits.get(name) for name in QuotaLimits.__struct_fields__}
    return QuotaView(
        subject=subject,
        limits=QuotaLimits(**limits),
        changed_ms=quota.changed_ms,
        changed_by=quota.changed_by,
        exists=exists,
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/quotas",
        get_quotas,
        QuotasView,
        route.page(),
        route_rights.CLUSTER_GET,
        Serves.READ,
        asks=PAGE_QUERY,
    ),
    Route(
        "GET",
        "/v1/quotas/refused",
        get_refused,
        OverQuotasView,
        route.page(2 * OWNERS_SHOWN),
        route_rights.CLUSTER_GET,
        Serves.LEADER,
    ),
    Route(
        "PUT",
        "/v1/quotas",
        set_quotas,
        QuotasChanged,
        route.page(PER_REQUEST),
        route_rights.SUPER,
        Serves.LEADER,
        QuotasRequest,
    ),
    Route(
        "DELETE",
        "/v1/quotas/{subject}",
        delete_quota,
        QuotasChanged,
        route.CONSTANT,
        route_rights.SUPER,
        Serves.LEADER,
        asks=(DRY_RUN,),
    ),
)
