"""The ranges of a read, from what a real cluster says; no Spark here."""

from __future__ import annotations

import pytest

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.plan import plan
from raftmq.arrow.ranges import QueueRange

pytestmark = pytest.mark.live

TOPIC = "planned"


@pytest.fixture(scope="module", autouse=True)
def topic(mq: raftmq.Client) -> None:
    """Two queues: 0 holds three messages, 1 none."""
    mq.admin.create_topic(TOPIC, 2)
    mq.send_batch(TOPIC, [b"a", b"b", b"c"], queue_id=0)


def planned(servers: str, **options: str) -> list[QueueRange]:
    return plan(parse_options({"servers": servers, "topic": TOPIC, **options}))


def test_all_that_is_kept(servers: str) -> None:
    assert planned(servers) == [QueueRange(TOPIC, 0, 0, 3), QueueRange(TOPIC, 1, 0, 0)]


def test_bounds_of_the_options(servers: str) -> None:
    assert planned(servers, startingOffsets='{"0": 1}', endingOffsets='{"0": 2}')[0] == QueueRange(TOPIC, 0, 1, 2)
    assert planned(servers, startingOffsets="latest") == [QueueRange(TOPIC, 0, 3, 3), QueueRange(TOPIC, 1, 0, 0)]


@pytest.mark.parametrize(
    ("options", "what", "why"),
    [
        ({"topic": "no-such-topic"}, "no topic no-such-topic", "no-such-topic"),
        ({"startingOffsets": '{"7": 0}'}, "startingOffsets names queue 7", "queues 0 to 1"),
        (
            {"endingOffsets": '{"0": 4}'},
            "endingOffsets asks for offset 4 of planned queue 0",
            "0 up to, not including, 3",
        ),
        ({"startingOffsets": '{"1": 1}'}, "startingOffsets asks for offset 1 of planned queue 1", "including, 0"),
        ({"startingOffsets": "latest", "endingOffsets": "earliest"}, "begins at 3 and ends at 0", "including, 3"),
    ],
)
def test_what_is_not_there_is_refused(servers: str, options: dict[str, str], what: str, why: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(servers, **options)
    assert what in caught.value.what
    assert why in caught.value.why


def test_nobody_answers() -> None:
    with pytest.raises(PlanError) as caught:
        plan(parse_options({"servers": "127.0.0.1:1", "topic": TOPIC}))
    assert caught.value.what == "no server answers at 127.0.0.1:1"
    assert "raftmq status" in caught.value.hint
