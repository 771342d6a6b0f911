"""Longest body of a request, by its code: known from the header, long before a large body has arrived."""

from __future__ import annotations

from typing import Final

from cluster.runtime.request_limits import GROUP_BODY_BYTES_MAX, HEARTBEAT_BYTES_MAX, OTHER_BODY_BYTES_MAX
from cluster.wire.codes import RequestCode

_WITH_MESSAGES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_LIMITS: Final[dict[int, int]] = {
    RequestCode.HEART_BEAT: HEARTBEAT_BYTES_MAX,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: GROUP_BODY_BYTES_MAX,
}


def too_long(code: int, size: int) -> str | None:
    """Why a request of that code has no body of so many bytes; None if it may. What carries messages is judged by its
    handler, which knows the limits of a message."""
    if code in _WITH_MESSAGES:
        return None
    most = _LIMITS.get(code, OTHER_BODY_BYTES_MAX)
    return f"the body of request {code} has {size} bytes, {most} are allowed" if size > most else None
