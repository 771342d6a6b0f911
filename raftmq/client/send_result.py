"""The outcome of a send: what a success reply says, and how it gets into the caller's future."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib

import msgspec

from cluster.wire.codec import Header
from raftmq.client.errors import Unknown
from raftmq.client.message import SendResult, position_of
from raftmq.client.send_window import AnyFuture, Pending


class _SendReply(msgspec.Struct, gc=False):
    queueId: int  # the protocol's names
    queueOffset: int
    msgId: str = ""
    recallHandle: str = ""


_decode_reply = msgspec.json.Decoder(_SendReply, strict=False).decode


def read_result(pending: Pending, header: Header) -> SendResult | list[SendResult]:
    """One result, or one per message of a batch, whose offsets are consecutive. Raises Unknown for a reply that says
    "stored" but not where.
    """
    ids = pending.message_ids
    try:
        reply = _decode_reply(header.extFields or b"{}")
    except msgspec.DecodeError as error:
        text = f"send to {pending.topic}: the success reply is not understood: {error}"
        raise Unknown(text, message_ids=ids) from error
    if not pending.batch:
        return SendResult(ids[0], reply.queueId, reply.queueOffset, position_of(reply.msgId), reply.recallHandle)
    positions = [position_of(i) for i in reply.msgId.split(",")]
    positions += [-1] * (len(ids) - len(positions))
    return [
        SendResult(message_id, reply.queueId, reply.queueOffset + n, position)
        for n, (message_id, position) in enumerate(zip(ids, positions, strict=False))
    ]


def settle(future: AnyFuture, result: SendResult | list[SendResult] | None, error: Exception | None) -> None:
    """Sets the outcome unless the caller gave the future up."""
    with contextlib.suppress(asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
