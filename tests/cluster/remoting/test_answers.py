"""The form on the wire of the broker's refusals, and of what it tells clients unasked."""

from __future__ import annotations

from cluster.broker.refusal import Reason, Refused
from cluster.flow.gate import Gate
from cluster.remoting.answers import CODES, answer_of
from cluster.remoting.connection.reply_path import ReplyPath
from cluster.runtime.resource_budget import Room
from raftmq_wire.codec import FLAG_ONEWAY, decode_header, ext_of
from raftmq_wire.codes import UNKNOWN_REMARK, ResponseCode
from tests.support.contexts import CONFIG
from tests.support.rows import each_row


@each_row("reason", list(Reason))
def test_only_an_unknown_outcome_is_marked_as_one(reason: Reason) -> None:
    code, remark = answer_of(Refused(reason, "why"))
    assert code == CODES[reason] != ResponseCode.SUCCESS
    assert remark == (f"{UNKNOWN_REMARK} why" if reason is Reason.UNKNOWN else "why")


def test_an_unknown_outcome_is_no_refusal_that_permits_a_retry() -> None:
    assert CODES[Reason.UNKNOWN] == ResponseCode.SYSTEM_ERROR
    assert CODES[Reason.UNAVAILABLE] == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_changed_group_is_told_by_a_oneway_request_40() -> None:
    sent: list[bytes] = []

    class Path(ReplyPath):
        def write(self, data: bytes) -> None:
            sent.append(data)

    Path(("10.0.0.9", 4000), "broker", Room(1 << 20, lambda callback: None), Gate(CONFIG)).consumers_changed("g")
    (frame,) = sent
    header = decode_header(frame[4], frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
    assert (header.code, header.flag & FLAG_ONEWAY, ext_of(header)) == (40, FLAG_ONEWAY, {"consumerGroup": "g"})
