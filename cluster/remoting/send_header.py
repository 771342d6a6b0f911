"""The ext fields of send requests: codes 10 (long names) and 310/320 (letters), plus our client's identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from cluster.remoting.codec import CodecError, Header

_LETTERS = {
    "producer_group": "a", "topic": "b", "default_topic": "c", "default_queues": "d", "queue_id": "e", "sys_flag": "f",
    "born_ms": "g", "message_flag": "h", "properties": "i", "reconsume_times": "j", "max_reconsume_times": "l",
    "is_batch": "m",
}  # fmt: skip
_NAMES = {
    "producer_group": "producerGroup", "topic": "topic", "default_topic": "defaultTopic",
    "default_queues": "defaultTopicQueueNums", "queue_id": "queueId", "sys_flag": "sysFlag",
    "born_ms": "bornTimestamp", "message_flag": "flag", "properties": "properties",
    "reconsume_times": "reconsumeTimes", "max_reconsume_times": "maxReconsumeTimes", "is_batch": "batch",
}  # fmt: skip
_IDENTITY = {"producer_id": "raftmqPid", "sequence": "raftmqSeq", "low_sequence": "raftmqLow"}


class SendHeader(msgspec.Struct, gc=False, rename=_LETTERS | _IDENTITY):
    """SendMessageRequestHeaderV2 (RocketMQ), and `raftmqPid`, `raftmqSeq`, `raftmqLow` (ours, optional)."""

    topic: str
    producer_group: str = ""
    default_topic: str = "TBW102"
    default_queues: int = 4
    queue_id: int = -1
    sys_flag: int = 0
    born_ms: int = 0
    message_flag: int = 0
    properties: str = ""
    reconsume_times: int | None = 0
    max_reconsume_times: int | None = None
    is_batch: bool | None = False
    producer_id: str = ""
    sequence: int = 0
    low_sequence: int = 0


# The same fields by their long names (SendMessageRequestHeader): renames are not inherited, so it is built.
_SendHeaderV1 = msgspec.defstruct(
    "_SendHeaderV1",
    [
        (f.name, f.type) if f.default is msgspec.NODEFAULT else (f.name, f.type, f.default)
        for f in msgspec.structs.fields(SendHeader)
    ],
    gc=False,
    rename=_NAMES | _IDENTITY,
)

_decode_v2 = msgspec.json.Decoder(SendHeader, strict=False).decode
_decode_v1 = cast("Callable[[msgspec.Raw], SendHeader]", msgspec.json.Decoder(_SendHeaderV1, strict=False).decode)

_SIGNED_32 = range(-(1 << 31), 1 << 31)


def decode_send_header(header: Header) -> SendHeader:
    """The fields of a send request of either form. Raises CodecError naming the field that does not fit."""
    try:
        fields = _decode_v1(header.extFields) if header.code == 10 else _decode_v2(header.extFields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"bad send header: {error}") from error
    if fields.message_flag not in _SIGNED_32 or not 0 <= fields.sys_flag < 1 << 31 or not 0 <= fields.born_ms < 1 << 63:
        raise CodecError("bad send header: a number is out of its range")
    if fields.queue_id not in _SIGNED_32 or not 0 <= (fields.reconsume_times or 0) < 1 << 31:
        raise CodecError("bad send header: a number is out of its range")
    if not 0 <= fields.sequence < 1 << 63 or not 0 <= fields.low_sequence < 1 << 63:
        raise CodecError("bad send header: a sequence is out of its range")
    return fields
