"""Writes the answers to sends. They are made from byte templates, collected per connection, and written once per loop
iteration."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.answers import CODES, answer_of
from cluster.remoting.connection.frame import Frame
from cluster.replication.message_batch import Built, Send
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, VERSION_SENT, encode_frame
from raftmq_wire.codes import ResponseCode
from raftmq_wire.kernel import shortcut
from raftmq_wire.message_format import RecallHandle

if TYPE_CHECKING:
    from cluster.requests.request_metrics import RequestMetrics

_STORED = (
    b'{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%b",'
    b'"queueOffset":"%d","transactionId":"%b"},"flag":1,"language":"JAVA","opaque":%d%b'
)
_TAIL = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION_SENT
_PREFIX = struct.Struct(">ii")
REASONS: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "busy",
    ResponseCode.MESSAGE_ILLEGAL: "message_illegal",
    ResponseCode.SERVICE_NOT_AVAILABLE: "not_available",
    ResponseCode.NO_PERMISSION: "no_permission",
    ResponseCode.TOPIC_NOT_EXIST: "no_topic",
    ResponseCode.INVALID_PARAMETER: "invalid",
    ResponseCode.FLOW_CONTROL: "quota",
}
"""Response code -> label `reason` of the metric. The gate itself counts what it refuses (`cluster.flow.gate.Limit`)."""
_REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


class SendReplyWriter:
    """Writes the answers to sends. `cluster.broker.sends.send_outcomes` decides which answer a send gets."""

    def __init__(self, store_host: bytes, broker_name: str, metrics: RequestMetrics | None = None) -> None:
        """`store_host` is the packed address of this node, with which its message ids begin. `broker_name` is the name
        by which clients find the cluster."""
        self._host_hex = store_host.hex().upper().encode()
        self._broker_name = broker_name
        self._metrics = metrics

    def refuse(self, frame: Frame, refused: Refused) -> None:
        """Answers a request that never became a send: as refused, or as unknown if a former leader may have stored
        it."""
        if frame.unsure is not None:
            frame.unsure(frame, refused.remark)
            return
        self._count(refused)
        if not frame.header.flag & FLAG_ONEWAY:
            _answer_refused(frame, refused)

    def fail(self, send: Send, refused: Refused) -> None:
        """Answers a send that was not stored, or whose outcome is unknown. A send without an identity that an earlier
        leader may have stored has an unknown outcome too, because there is no way to search for it."""
        frame = send.origin
        if not send.producer_id and type(frame) is Frame and frame.unsure is not None:
            frame.unsure(frame, refused.remark)
            return
        if refused.reason is not Reason.UNKNOWN:
            self._count(refused)
        if not send.oneway:
            assert type(frame) is Frame
            _answer_refused(frame, refused)

    def _count(self, refused: Refused) -> None:
        if self._metrics is not None and not refused.counted:
            self._metrics.refused(REASONS.get(CODES[refused.reason], "other"))

    def acknowledge_plain(self, sends: list[Send], built: Built, at: int) -> int:
        """Answers stored plain sends from index `at` on; returns the index of the first other send."""
        return acknowledge(sends, built.offsets, built.positions, at, self._host_hex, _TAIL, _as_json)

    def acknowledge(self, send: Send, queue_id: int, offset: int, positions: tuple[int, ...] | int) -> None:
        """Answers a send that is stored."""
        if send.oneway:
            return
        request = send.origin
        assert type(request) is Frame
        host = self._host_hex
        if type(positions) is int:
            message_id = b"%b%016X" % (host, positions)
        else:
            message_id = b",".join([b"%b%016X" % (host, p) for p in positions])  # type: ignore[union-attr]
        key = send.unique_key
        if request.serialize_type == BINARY or send.due_ms:
            ext = {
                "msgId": message_id.decode(),
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                "transactionId": key,
                **_REGION,
            }
            if send.due_ms and type(positions) is int and send.slot.name[0] != "%":
                handle = RecallHandle(send.slot.name, self._broker_name, send.due_ms, key, positions)
                ext["recallHandle"] = handle.encode()
            frame = encode_frame(
                0,
                request.header.opaque,
                FLAG_RESPONSE,
                ext=ext,
                serialize_type=request.serialize_type,
                language="JAVA",
            )
        else:
            header = _STORED % (queue_id, message_id, offset, _as_json(key), request.header.opaque, _TAIL)
            frame = _PREFIX.pack(4 + len(header), len(header)) + header
        send.connection.write(frame)


@shortcut
def acknowledge(
    sends: list[Send],
    offsets: list[int],
    positions: list[tuple[int, ...] | int],
    at: int,
    host: bytes,
    tail: bytes,
    as_json: Callable[[str], bytes],
) -> int:
    """Answers plain sends that the kernel took, from index `at` on; returns the index of the first other send. The
    Python version leaves all to `SendReplyWriter`. `host` is the hex host of message ids; `tail` is the header after
    the opaque."""
    return at


def _as_json(key: str) -> bytes:
    """Returns a key escaped for use between the quotes of a JSON string."""
    return (key if key.isalnum() else json.dumps(key)[1:-1]).encode()


def _answer_refused(frame: Frame, refused: Refused) -> None:
    code, remark = answer_of(refused)
    frame.path.write(
        encode_frame(
            code,
            frame.header.opaque,
            FLAG_RESPONSE,
            ext=_REGION,
            remark=remark,
            serialize_type=frame.serialize_type,
            language="JAVA",
            reader=frame.header.language,
        )
    )
