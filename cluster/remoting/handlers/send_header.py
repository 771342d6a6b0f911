"""The ext fields of send requests: codes 10 (long names) and 310/320 (letters), plus our client's identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from cluster.runtime.request_limits import Signed64, Unsigned31, Unsigned63
from raftmq_wire.codec import CodecError, Header, Signed32
from raftmq_wire.codes import RequestCode
from raftmq_wire.json_text import MALFORMED

_LETTERS = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_queues": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_ms": "g",
    "message_flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "max_reconsume_times": "l",
    "is_batch": "m",
}
_NAMES = {
    "producer_group": "producerGroup",
    "topic": "topic",
    "default_topic": "defaultTopic",
    "default_queues": "defaultTopicQueueNums",
    "queue_id": "queueId",
    "sys_flag": "sysFlag",
    "born_ms": "bornTimestamp",
    "message_flag": "flag",
    "properties": "properties",
    "reconsume_times": "reconsumeTimes",
    "max_reconsume_times": "maxReconsumeTimes",
    "is_batch": "batch",
}
_IDENTITY = {"producer_id": "raftmqPid", "sequence": "raftmqSeq", "low_sequence": "raftmqLow"}


class SendHeader(msgspec.Struct, gc=False, rename=_LETTERS | _IDENTITY):
    """SendMessageRequestHeaderV2 (RocketMQ), and `raftmqPid`, `raftmqSeq`, `raftmqLow` (ours, optional)."""

    topic: str
    producer_group: str = ""
    default_topic: str = "TBW102"
    default_queues: Signed32 = 4
    queue_id: Signed32 = -1
    sys_flag: Unsigned31 = 0
    born_ms: Unsigned63 = 0
    message_flag: Signed32 = 0
    properties: str = ""
    reconsume_times: Unsigned31 | None = 0
    max_reconsume_times: Signed64 | None = None
    is_batch: bool | None = False
    producer_id: str = ""
    sequence: Unsigned63 = 0
    low_sequence: Unsigned63 = 0


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


def send_header_of(code: int, ext: dict[str, str]) -> SendHeader:
    """The same of a request whose fields are decoded already: a reply (324 has long names, 325 letters)."""
    form = _SendHeaderV1 if code == RequestCode.SEND_REPLY_MESSAGE else SendHeader
    try:
        return cast("SendHeader", msgspec.convert(ext, form, strict=False))
    except msgspec.ValidationError as error:
        raise CodecError(f"bad send header: {error}") from error


def decode_send_header(header: Header) -> SendHeader:
    """The fields of a send request of either form. Raises CodecError naming the field that does not fit."""
    try:
        fields = _decode_v1(header.extFields) if header.code == 10 else _decode_v2(header.extFields)
    except MALFORMED as error:
        raise CodecError(f"bad send header: {error}") from error
    return fields
