"""The names of requests, for people."""

from __future__ import annotations

import pytest

from raftmq_wire.codes import name_of_request


@pytest.mark.parametrize(
    ("code", "name"),
    [(310, "SEND_MESSAGE_V2 (310)"), (21, "GET_ALL_TOPIC_CONFIG (21)"), (99_999, "code 99999")],
)
def test_a_request_is_named_with_its_code(code: int, name: str) -> None:
    assert name_of_request(code) == name
