"""Answers of several groups of brokers about topics and consumer groups become one."""

from __future__ import annotations

from typing import Any

from raftmq.local.http.group_sums import one_change, one_group, one_list, one_topic, one_topic_with_queues
from raftmq_wire.queue_numbers import number_of

FAR = number_of(2, 0)


def topic(messages: int, size: int | None, *, exact: bool = True) -> dict[str, Any]:
    return {"name": "T", "id": 7, "write_queues": 1, "messages": messages, "bytes": size, "bytes_exact": exact}


def member(client: str, port: int) -> dict[str, Any]:
    return {"client_id": client, "address": f"h:{port}"}


def test_one_group_alone_is_told_as_it_is() -> None:
    answer = {"groups": [{"name": "g"}], "next": None}
    assert one_list({1: answer}, "groups", one_group) is answer
    for merged in (one_group, one_topic, one_topic_with_queues):
        assert merged({1: answer}) is answer
    assert one_change({1: answer}, "queues") is answer


def test_topics_are_summed() -> None:
    answers = {1: {"topics": [topic(3, 10)]}, 2: {"topics": [topic(4, 20, exact=False), {**topic(1, 1), "name": "A"}]}}
    first, second = one_list(answers, "topics", one_topic)["topics"]
    assert first["name"] == "A"
    assert second == {"name": "T", "id": 7, "write_queues": 2, "messages": 7, "bytes": 30, "bytes_exact": False}
    assert one_topic({1: topic(3, 10), 2: topic(4, None)})["bytes"] is None


def test_queues_have_their_numbers_in_the_cluster() -> None:
    answers = {group: {"topic": topic(group, 1), "queues": [{"queue_id": 0}]} for group in (1, 2)}
    told = one_topic_with_queues(answers)
    assert (told["topic"]["messages"], told["queues"]) == (3, [{"queue_id": 0}, {"queue_id": FAR}])
    assert one_change({2: {"queues": [{"queue_id": 1}]}}, "queues")["queues"] == [{"queue_id": FAR + 1}]


def test_a_consumer_group_is_summed_and_a_client_counts_once() -> None:
    listed = {
        1: {"name": "g", "topics": ["B"], "members": 1, "lag": 2, "hidden": 0, "beyond_end": 1, "lag_ms": 9},
        2: {"name": "g", "topics": ["A"], "members": 2, "lag": 3, "hidden": 1, "beyond_end": 0, "lag_ms": 4},
    }
    told = one_group(listed)
    assert told == {
        "name": "g", "topics": ["A", "B"], "members": 2, "lag": 5, "hidden": 1, "beyond_end": 1, "lag_ms": 9,
    }  # fmt: skip
    details = {
        1: {"lag": 1, "members": [member("a", 1), member("a", 2)], "members_total": 2, "offsets": []},
        2: {
            "lag": 1,
            "members": [member("a", 3), member("b", 4)],
            "members_total": 2,
            "offsets": [{"topic": "T", "queue_id": 0}],
        },
    }
    told = one_group(details)
    assert told["members"] == [member("a", 1), member("a", 2), member("b", 4)]
    assert (told["members_total"], told["lag"]) == (3, 2)
    assert told["offsets"] == [{"topic": "T", "queue_id": FAR}]
