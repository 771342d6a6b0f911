"""/v1/groups/{name}/reset: moves a group's offsets, also while it is consuming."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import msgspec

from cluster.admin.call import Call, told
from cluster.admin.errors import ApiError, unknown_outcome
from cluster.broker.offset_resets import OffsetResets, QueueOffset, ResetTo, ResetWish
from cluster.broker.refusal import Reason, Refused
from cluster.runtime.request_limits import QueueId, TopicName, Unsigned63


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/groups/{name}/reset`. `value`: the time, ms since 1970, or the offset, with `to` of that name."""

    topic: TopicName
    to: Literal["earliest", "latest", "time", "offset"]
    value: Unsigned63 | None = None
    queue_id: QueueId | None = None
    """null: every queue of the topic."""


class ResetOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue was reset to."""

    queue_id: int
    offset: int


class GroupReset(msgspec.Struct, frozen=True, kw_only=True):
    """The group's offsets were moved. Consumers are told with their next pull."""

    node: int
    group: str
    topic: str
    queues: list[ResetOffset]


_CODES: Final = {
    Reason.NO_TOPIC: ("not_found", "GET /v1/topics lists all"),
    Reason.NO_GROUP: ("not_found", "GET /v1/groups lists all; consumers make theirs when they connect"),
    Reason.INVALID: ("bad_field", "correct the request; nothing was changed"),
}


async def reset_group(call: Call) -> GroupReset:
    """Moves the offsets of a group in one topic, also of running consumers."""
    wanted: ResetRequest = call.body
    if (wanted.value is None) == (wanted.to in ("time", "offset")):
        raise ApiError(
            "bad_field", f'"value" goes with "to": "time" or "offset", not "{wanted.to}"', "see openapi.json"
        )
    wish = ResetWish(call.params["name"], wanted.topic, ResetTo[wanted.to.upper()], wanted.value or 0, wanted.queue_id)
    # The node answers at the latest after [send] deadline_ms.
    found: list[QueueOffset] | Refused = await told(partial(OffsetResets(call.port.services).reset, wish))
    if isinstance(found, Refused):
        raise _error(found)
    return GroupReset(
        node=call.port.config.node.id,
        group=wish.group,
        topic=wish.topic,
        queues=[ResetOffset(queue_id=queue_id, offset=offset) for queue_id, offset in found],
    )


def _error(refused: Refused) -> ApiError:
    if refused.reason is Reason.UNKNOWN:
        return unknown_outcome(refused.remark)
    code, hint = _CODES.get(refused.reason, ("failed", "try again; nothing was changed"))
    return ApiError(code, refused.remark, hint)
