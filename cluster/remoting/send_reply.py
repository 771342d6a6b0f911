"""Answers to sends: from byte templates, appended per connection, written once per loop iteration.

Also the place where a send's fate meets its client: a reply that could not be handed to a living connection, or that
said UNKNOWN, leaves the send *unanswered*, and its retry is recognised (see `identity`).
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from cluster.broker.refusal import Refused
from cluster.remoting.answers import answer_of
from cluster.remoting.frame import Frame
from cluster.replication.identity import Identity, RetryMemory
from cluster.replication.message_batch import Built, Send
from cluster.replication.outcome import Outcome
from cluster.runtime.clock import Clock
from cluster.runtime.contained import contain
from cluster.wire.codec import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, VERSION_SENT, encode_frame
from cluster.wire.codes import UNKNOWN_REMARK, ResponseCode
from statemachine.broker_state import BrokerState

if TYPE_CHECKING:
    from cluster.remoting.request_figures import RequestFigures

_STORED = (
    b'{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%b",'
    b'"queueOffset":"%d","transactionId":"%b"},"flag":1,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION_SENT).encode() + b"}"
)
_PREFIX = struct.Struct(">ii")
_REASONS: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "busy",
    ResponseCode.MESSAGE_ILLEGAL: "message_illegal",
    ResponseCode.SERVICE_NOT_AVAILABLE: "not_available",
    ResponseCode.NO_PERMISSION: "no_permission",
    ResponseCode.TOPIC_NOT_EXIST: "no_topic",
    ResponseCode.INVALID_PARAMETER: "invalid",
}
"""Response code -> `reason` of the metric."""
_REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


class SendReplyWriter:
    """Implements `proposals.SendReplies`."""

    def __init__(
        self,
        clock: Clock,
        state: BrokerState,
        store_host: bytes,
        retries: RetryMemory,
        incarnation: bytes,
        metrics: RequestFigures | None = None,
    ) -> None:
        """`incarnation` is the prefix of the producer ids that this node gave out."""
        self._clock = clock
        self._state = state
        self._host_hex = store_host.hex().upper().encode()
        self._retries = retries
        self._incarnation = incarnation
        self._metrics = metrics

    # --- fates of proposals ------------------------------------------------------------------------------------------

    def stored(self, sends: list[Send], built: Built, muted: set[int]) -> None:
        """Committed and applied: the only place where a send is acknowledged."""
        for at, send in enumerate(sends):
            path = send.connection
            if muted and at in muted:
                continue
            path.inflight_bytes -= send.size
            if send.oneway:
                self._settle_identity(send)
                if send.done is not None:
                    contain("ending a copy", send.done, Outcome.OK)
            elif not path.closed:  # else it was remembered when its connection closed
                self._settle_identity(send)
                self._acknowledge(send, send.queue_id, built.offsets[at], built.positions[at])

    def refused(self, send: Send, remark: str) -> None:
        """Never proposed, or proved lost: 14, safe to send again anywhere."""
        self._fail(send, ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def unbuildable(self, send: Send, remark: str) -> None:
        """No entry could be made of it: 1, an error of this node. The same again ends the same way."""
        self._fail(send, ResponseCode.SYSTEM_ERROR, remark)

    def _fail(self, send: Send, code: int, remark: str) -> None:
        send.connection.inflight_bytes -= send.size
        if send.done is not None:
            send.done(Outcome.FAIL)
            return
        if not self._settle_identity(send) and not send.connection.closed:
            self._remember(send)  # a refused retry says nothing about the first attempt
        if self._metrics is not None:
            self._metrics.refused(_REASONS.get(code, "other"))
        self._error(send, code, remark)

    def unknown(self, send: Send, remark: str) -> None:
        """Proposed and undecided: 1 with the UNKNOWN remark."""
        send.connection.inflight_bytes -= send.size
        if send.done is not None:
            send.done(Outcome.UNKNOWN)
            return
        if not send.connection.closed:
            self._remember(send)
        self._error(send, ResponseCode.SYSTEM_ERROR, f"{UNKNOWN_REMARK} {remark}")

    def connection_closed(self, unanswered: list[Send]) -> None:
        """The client can no longer hear of these: each may come again, also before the log has decided."""
        for send in unanswered:
            self._remember(send)

    def stored_before(self, send: Send, topic_id: int, queue_id: int, queue_offset: int, position: int) -> None:
        """A re-send of what the log holds: the first one's result."""
        self._settle_identity(send)
        positions: tuple[int, ...] | int = position
        if send.batch:
            items = self._state.fetch(topic_id, queue_id, queue_offset, len(send.batch))
            positions = tuple(item.position for item in items)
        self._acknowledge(send, queue_id, queue_offset, positions)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def refuse(self, frame: Frame, refused: Refused) -> None:
        """Answers a request that never became a send."""
        header = frame.header
        code, remark = answer_of(refused)
        if self._metrics is not None:
            self._metrics.refused(_REASONS.get(code, "other"))
        if header.flag & FLAG_ONEWAY:
            return
        answer = encode_frame(
            code,
            header.opaque,
            FLAG_RESPONSE,
            ext=_REGION,
            remark=remark,
            serialize_type=frame.serialize_type,
            language="JAVA",
        )
        frame.path.write(answer)

    def _acknowledge(self, send: Send, queue_id: int, offset: int, positions: tuple[int, ...] | int) -> None:
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
        if request.serialize_type == BINARY:
            ext = {
                "msgId": message_id.decode(),
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                "transactionId": key,
                **_REGION,
            }
            frame = encode_frame(
                0, request.header.opaque, FLAG_RESPONSE, ext=ext, serialize_type=BINARY, language="JAVA"
            )
        else:
            text = key if key.isalnum() else json.dumps(key)[1:-1]
            header = _STORED % (queue_id, message_id, offset, text.encode(), request.header.opaque)
            frame = _PREFIX.pack(4 + len(header), len(header)) + header
        send.connection.write(frame)

    def _error(self, send: Send, code: int, remark: str) -> None:
        if send.oneway:
            return
        request = send.origin
        assert type(request) is Frame
        frame = encode_frame(
            code,
            request.header.opaque,
            FLAG_RESPONSE,
            ext=_REGION,
            remark=remark,
            serialize_type=request.serialize_type,
            language="JAVA",
        )
        send.connection.write(frame)

    # --- identities --------------------------------------------------------------------------------------------------

    def _settle_identity(self, send: Send) -> bool:
        """Answered for good. False if the identity is of an earlier session: the send was a retry."""
        session = send.connection.session
        if session is None or session.producer_id != send.producer_id:
            return False
        session.settle(send.sequence)
        return True

    def _remember(self, send: Send) -> None:
        """Keeps the identity of a foreign client's unanswered send; the connection goes on under a new producer id."""
        if send.oneway or not send.unique_key or send.producer_id[:8] != self._incarnation:
            return
        identity = Identity(send.producer_id, send.sequence, send.low_sequence)
        self._retries.remember(send.slot.name, send.unique_key, send.body, identity, self._clock.monotonic_ms())
        session = send.connection.session
        if session is not None and session.producer_id == send.producer_id:
            send.connection.session = None
