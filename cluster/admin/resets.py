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
from raftlog.work import ITEM_UNITS, charge
from statemachine.broker_state import BrokerState


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/groups/{name}/reset`. `value`: the time, ms since 1970, or the offset, with `to` of that name."""

    topic: TopicName
    to: Literal["earliest", "latest", "time", "offset"]
    value: Unsigned63 | None = None
    queue_id: QueueId | None = None
    """null: every queue of the topic."""
    dry_run: bool = False
    """Only answer what would change."""


class ResetOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue was reset to."""

    queue_id: int
    offset: int
    before: int | None = None
    """Where the group stood; null if it had committed nothing, or that is not known."""
    again: int = 0
    """Messages that the group had committed and gets again."""
    skipped: int = 0
    """Messages that the group had not committed and does not get."""


class GroupReset(msgspec.Struct, frozen=True, kw_only=True):
    """The group's offsets were moved, or would be. Consumers are told with their next pull."""

    node: int
    group: str
    topic: str
    dry_run: bool
    """Nothing was changed."""
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
    resets, state = OffsetResets(call.port.services, call.port.old_bounds), call.port.state
    before = state.offsets_by_topic(wish.group)
    found: list[QueueOffset] | Refused = await told(partial(resets.plan if wanted.dry_run else resets.reset, wish))
    if isinstance(found, Refused):
        raise _error(found)
    topic = state.topics[wish.topic]
    if not wanted.dry_run:
        to = wanted.to if wanted.value is None else f"{wanted.to} {wanted.value}"
        call.note_change(
            f"group {wish.group}", f"its offsets in {len(found)} queues of {wish.topic} were reset to {to}"
        )
    rows: list[ResetOffset] = []
    for each in found:
        await call.breathe()
        charge(ITEM_UNITS)
        rows.append(_row(state, topic.id, each, before.get(topic.id, {}).get(each.queue_id)))
    return GroupReset(
        node=call.port.config.node.id,
        group=wish.group,
        topic=wish.topic,
        dry_run=wanted.dry_run,
        queues=rows,
    )


def _row(state: BrokerState, topic_id: int, wanted: QueueOffset, before: int | None) -> ResetOffset:
    stood = max(before or 0, state.min_offset(topic_id, wanted.queue_id))
    return ResetOffset(
        queue_id=wanted.queue_id,
        offset=wanted.offset,
        before=before,
        again=max(0, stood - wanted.offset),
        skipped=max(0, wanted.offset - stood),
    )


def _error(refused: Refused) -> ApiError:
    if refused.reason is Reason.UNKNOWN:
        return unknown_outcome(refused.remark)
    code, hint = _CODES.get(refused.reason, ("failed", "try again; nothing was changed"))
    return ApiError(code, refused.remark, hint)
