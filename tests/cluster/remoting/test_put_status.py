"""The possible answers to a send (RocketMQ: PutMessageStatus, ResponseCode): page, codes and gate agree."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.flow.gate import Limit
from cluster.remoting.handlers import send_reply
from raftmq_wire.codes import UNKNOWN_REMARK, ResponseCode

PAGE = (Path(__file__).parents[3] / "docs" / "guarantees.md").read_text()
ROWS = re.findall(r"^\| (\*\*unknown\*\*|ok|fail) \| (\d+) `(\w+)`(.*?) \|", PAGE, re.MULTILINE)


def test_c8_every_status_of_the_page_is_a_code_under_its_name() -> None:
    assert {(int(code), name) for _, code, name, _ in ROWS} == {
        (code, ResponseCode(code).name) for code in (0, 1, 2, 13, 14, 16, 17, 29, 215)
    }
    assert [(outcome, code) for outcome, code, _, _ in ROWS if outcome != "fail"] == [("ok", "0"), ("**unknown**", "1")]
    assert [rest for _, code, _, rest in ROWS if code == "1"] == [
        f", remark begins `{UNKNOWN_REMARK}`",
        ", any other remark",
    ]


def test_c4_every_reason_for_which_the_gate_is_shut_has_its_own_code_and_its_own_metric_label() -> None:
    refusals = {int(code) for outcome, code, _, _ in ROWS if outcome == "fail"} - {1}
    assert refusals == {int(code) for code in send_reply.REASONS}
    assert send_reply.REASONS[ResponseCode.SYSTEM_BUSY] == Limit.BYTES, "any other refusal with this code has it too"
    assert send_reply.REASONS[ResponseCode.FLOW_CONTROL] == Limit.QUOTA
    labels = [*send_reply.REASONS.values(), Limit.OVERLOAD.value]
    assert len(set(labels)) == len(labels)


def test_c8_codes_that_mean_stored_to_clients_without_it_being_durable_do_not_exist() -> None:
    """FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT: clients count these as stored."""
    assert not {10, 11, 12} & {int(code) for code in ResponseCode}
