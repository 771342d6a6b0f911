"""The ranges of a read, from what a real cluster says; no Spark here."""

from __future__ import annotations

import json

import pytest

import raftmq
from pyspark_raftmq.errors import PlanError
from pyspark_raftmq.options import parse_options
from pyspark_raftmq.read_plan import plan, split
from raftmq.arrow.ranges import QueueRange

pytestmark = pytest.mark.live

TOPIC = "planned"


@pytest.fixture(scope="module", autouse=True)
def topic(mq: raftmq.Client) -> None:
    """Two queues: 0 holds three messages, 1 none."""
    mq.admin.create_topic(TOPIC, 2)
    mq.send_batch(TOPIC, [b"a", b"b", b"c"], queue_id=0)


def planned(servers: str, **options: str) -> list[QueueRange]:
    ranges = plan(parse_options({"servers": servers, "topic": TOPIC, **options}))
    with raftmq.connect(servers) as client:
        assert {each.counted_in for each in ranges} == {client.admin.identity(TOPIC)}
    return [each._replace(counted_in=None) for each in ranges]


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


def test_offsets_that_were_kept_with_their_topic(servers: str, mq: raftmq.Client) -> None:
    """Of another one they are refused by name; where losses are accepted, the read begins at the beginning."""
    here = mq.admin.identity(TOPIC)
    assert here is not None
    kept = json.dumps({TOPIC: {"0": 2, "id": str(here)}})
    assert planned(servers, startingOffsets=kept)[0] == QueueRange(TOPIC, 0, 2, 3)
    other = json.dumps({"0": 2, "id": str(here._replace(topic_id=1_000_000))})
    with pytest.raises(PlanError, match="startingOffsets asks for offset 2 of another topic planned") as caught:
        planned(servers, startingOffsets=other)
    assert "the topic with id 1000000, which is gone" in caught.value.why
    assert planned(servers, startingOffsets=other, failOnDataLoss="false")[0] == QueueRange(TOPIC, 0, 0, 3)


def test_several_topics_and_patterns(servers: str, mq: raftmq.Client) -> None:
    mq.admin.create_topic("planned-too", 1)

    def read(**options: str) -> list[tuple[str, int]]:
        return [(each.topic, each.queue_id) for each in plan(parse_options({"servers": servers, **options}))]

    assert read(subscribe=f"planned-too,{TOPIC}") == [("planned-too", 0), (TOPIC, 0), (TOPIC, 1)]
    assert read(subscribePattern="planned.*") == [(TOPIC, 0), (TOPIC, 1), ("planned-too", 0)]
    assert read(assign='{"planned": [1]}') == [(TOPIC, 1)]
    with pytest.raises(PlanError, match="no topic matches plan"):
        read(subscribePattern="plan")
    with pytest.raises(PlanError, match="assign names queue 2 of planned"):
        read(assign='{"planned": [2]}')


def test_offsets_that_are_not_there_are_moved_if_loss_is_accepted(servers: str) -> None:
    lenient = planned(servers, startingOffsets='{"0": 9}', endingOffsets='{"0": 99, "1": 9}', failOnDataLoss="false")
    assert lenient == [QueueRange(TOPIC, 0, 3, 3), QueueRange(TOPIC, 1, 0, 0)]


def test_times_are_offsets_of_the_leader(servers: str) -> None:
    assert planned(servers, startingTimestamp="1", endingTimestamp="2") == [
        QueueRange(TOPIC, 0, 0, 0),
        QueueRange(TOPIC, 1, 0, 0),
    ]
    assert planned(servers, startingTimestamp="1")[0] == QueueRange(TOPIC, 0, 0, 3)
    assert planned(servers, startingTimestamp="9000000000000")[0] == QueueRange(TOPIC, 0, 3, 3)


@pytest.mark.parametrize(("at_least", "most"), [(None, None), (5, None), (None, 3), (2, 4), (100, None), (1, 1)])
def test_splitting_keeps_every_offset(at_least: int | None, most: int | None) -> None:
    ranges = [QueueRange("a", 0, 5, 12), QueueRange("a", 1, 3, 3), QueueRange("b", 0, 0, 4)]
    parts = split(ranges, at_least, most)
    assert [(p.topic, p.queue_id, o) for p in parts for o in range(p.start, p.end)] == [
        (r.topic, r.queue_id, o) for r in ranges for o in range(r.start, r.end)
    ]
    assert all(part.start < part.end for part in parts)
    assert len(parts) >= min(at_least or 0, 11)
    assert all(part.end - part.start <= (most or 11) for part in parts)


def test_nobody_answers() -> None:
    with pytest.raises(PlanError) as caught:
        plan(parse_options({"servers": "127.0.0.1:1", "topic": TOPIC}))
    assert caught.value.what == "no server answers at 127.0.0.1:1"
    assert "raftmq status" in caught.value.hint
