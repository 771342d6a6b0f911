"""Converts refusals of the broker into errors of the HTTP API, by one table from reasons to error codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from cluster.admin.errors import ApiError, unknown_outcome
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.awaited import told
from raftlog.kept_errors import bare

T = TypeVar("T")

CODES: Final[Mapping[Reason, str]] = {
    Reason.INVALID: "bad_field",
    Reason.MESSAGE_ILLEGAL: "bad_field",
    Reason.NO_PERMISSION: "refused",
    Reason.NO_TOPIC: "not_found",
    Reason.NO_QUEUE: "not_found",
    Reason.NO_GROUP: "not_found",
    Reason.NO_CONSUMER: "not_found",
    Reason.NO_SUBSCRIPTION: "not_found",
    Reason.STALE_SUBSCRIPTION: "refused",
    Reason.BAD_SUBSCRIPTION: "bad_field",
    Reason.ILLEGAL: "refused",
    Reason.NOT_FOUND: "not_found",
    Reason.BUSY: "busy",
    Reason.LIMITED: "over_quota",
    Reason.UNAVAILABLE: "failed",
    Reason.ERROR: "failed",
    Reason.UNKNOWN: "unknown_outcome",
}
"""Reason of a refusal -> error code of the HTTP API."""
_LISTS: Final[Mapping[Reason, str]] = {
    Reason.NO_TOPIC: "GET /v1/topics lists all",
    Reason.NO_QUEUE: "GET /v1/topics/{name} lists them",
    Reason.NO_GROUP: "GET /v1/groups lists all; consumers make theirs when they connect",
}
CORRECT: Final = "correct the request; nothing was changed"
AGAIN: Final = "try again; nothing was changed"


def error_of(
    refused: Refused, fix: str = CORRECT, again: str = AGAIN, codes: Mapping[Reason, str] = CODES, *, lead: str = ""
) -> ApiError:
    """Returns the error for a refusal. `fix` is the hint if the request must change, `again` the hint if it may be
    repeated unchanged. `codes` overrides CODES for some reasons. `lead` is put before the refusal's remark, unless the
    outcome is unknown."""
    if refused.reason is Reason.UNKNOWN:
        return unknown_outcome(refused.remark)
    code = codes.get(refused.reason) or CODES[refused.reason]
    hint = (
        again
        if code in ("busy", "failed", "over_quota")
        else _LISTS.get(refused.reason, fix)
        if code == "not_found"
        else fix
    )
    return ApiError(code, lead + refused.remark, hint, again_ms=refused.again_ms)


async def not_refused(
    ask: Callable[[Callable[[T | Refused], None]], object],
    fix: str = CORRECT,
    again: str = AGAIN,
    codes: Mapping[Reason, str] = CODES,
    *,
    lead: str = "",
) -> T:
    """Calls `ask` with a callback, waits for the callback's value, and returns it. If that is a refusal, or `ask`
    raises one, raises its ApiError instead. The other arguments are those of `error_of`."""
    try:
        found = await told(ask)
    except Refused as at_once:
        found = bare(at_once)
    if isinstance(found, Refused):
        raise error_of(found, fix, again, codes, lead=lead)
    return found
