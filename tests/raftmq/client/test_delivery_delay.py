"""The form of a delay or a time of delivery on the wire, and values that make no sense."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from raftmq.client.message import encode_properties
from raftmq.client.producing.delivery_delay import with_delay
from raftmq_wire.properties import parse_properties


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"delay": 1}, "TIMER_DELAY_MS", "1000"),
        ({"delay": 0.25}, "TIMER_DELAY_MS", "250"),
        ({"delay": 0}, "TIMER_DELAY_MS", "0"),
        ({"delay": timedelta(days=1)}, "TIMER_DELAY_MS", "86400000"),
        ({"deliver_at": 1_700_000_000_123}, "TIMER_DELIVER_MS", "1700000000123"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "TIMER_DELIVER_MS", "1893456000000"),
    ],
)
def test_a_time_is_a_property(given: dict[str, Any], name: str, value: str) -> None:
    properties = with_delay({"a": "b"}, given.get("delay"), given.get("deliver_at"))
    sent = parse_properties(encode_properties("ID", None, None, properties))
    assert (sent["a"], sent[name]) == ("b", value)


def test_without_a_time_nothing_is_added() -> None:
    assert with_delay(None, None, None) is None
    own = {"a": "b"}
    assert with_delay(own, None, None) is own


@pytest.mark.parametrize(
    ("delay", "deliver_at", "words"),
    [
        (1, 1, "not both"),
        (-1, None, "from 0 up"),
        (float("nan"), None, "from 0 up"),
        (float("inf"), None, "from 0 up"),
        (None, datetime(2030, 1, 1), "time zone"),  # noqa: DTZ001
    ],
)
def test_what_makes_no_sense_is_refused(delay: Any, deliver_at: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_delay(None, delay, deliver_at)
