"""Dead letters on the command line: listed, sent again, purged."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from raftmq.cli import cli
from raftmq.client import connect

pytestmark = pytest.mark.live


@pytest.fixture
def run(live_cluster: Any) -> Any:
    """Runs `raftmq dlq` with these words."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["dlq", *words, "--servers", live_cluster.servers], standalone_mode=False)

    return run


def test_from_a_dead_letter_to_the_group_and_away(live_cluster: Any, run: Any) -> None:
    group = f"billing-{uuid4().hex[:8]}"
    with connect(live_cluster.servers) as mq:
        mq.admin.create_group(group)
        assert run("list", group).output == f"0 dead letters of {group}\n"
        for number in range(3):
            properties = {"RETRY_TOPIC": "orders", "shade": "blue", "REAL_QID": "7"}
            mq.send(f"%DLQ%{group}", b"%d" % number, queue_id=0, key=f"k{number}", tag="t", properties=properties)
        listed = json.loads(run("list", group, "--max", "2", "--json").output)
        assert listed["kept"] == 3
        assert [(one["offset"], one["topic"], one["key"], one["body"]) for one in listed["letters"]] == [
            (0, "orders", "k0", "0"),
            (1, "orders", "k1", "1"),
        ]
        assert run("resend", group, "--offset", "2", "--offset", "0").output == f"sent 2 messages to %RETRY%{group}\n"
        table = run("list", group)
        marks = [line.split()[-1] == "yes" for line in table.output.splitlines()[1:-1]]
        assert marks == [True, False, True], table.output
        assert table.output.splitlines()[-1] == f"3 dead letters of {group}; 2 of the 3 shown resent"
        letters = json.loads(run("list", group, "--json").output)["letters"]
        assert [one["resent"] for one in letters] == [True, False, True]
        again = mq.pull(f"%RETRY%{group}", 0, 0, wait_s=5).messages
        assert [(one.body, one.key, one.tag, one.reconsume_times) for one in again] == [
            (b"0", "k0", "t", 0),
            (b"2", "k2", "t", 0),
        ]
        assert again[0].properties["RETRY_TOPIC"] == "orders"
        assert again[0].properties["shade"] == "blue"
        assert "REAL_QID" not in again[0].properties
        assert run("purge", group, "--yes").output == f"deleted 3 dead letters of {group}\n"
        assert run("list", group).output == f"0 dead letters of {group}\n"


def test_what_is_not_there_is_not_sent(live_cluster: Any, run: Any) -> None:
    group = f"billing-{uuid4().hex[:8]}"
    with connect(live_cluster.servers) as mq:
        mq.send(f"%DLQ%{group}", b"x", queue_id=0)
    failed = run("resend", group, "--offset", "0", "--offset", "5")
    assert "no dead letter at offset 5" in str(failed.exception)
    assert "--all" in str(run("resend", group).exception)


def test_resent_letters_reach_consumers_of_the_group(live_cluster: Any, run: Any) -> None:
    group, topic = f"billing-{uuid4().hex[:8]}", f"orders-{uuid4().hex[:8]}"
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        mq.send(topic, b"poor", key="42")
        with mq.consumer(group, topic) as consumer:
            consumer.dead_letter(next(consumer))
            assert run("list", group).output.endswith(f"\n1 dead letter of {group}\n")
            assert run("resend", group, "--all").output == f"sent 1 message to %RETRY%{group}\n"
            again = next(consumer)
        assert (again.topic, again.body, again.key, again.reconsume_times) == (topic, b"poor", "42", 0)


@pytest.mark.parametrize("words", [("list",), ("resend", "--all"), ("purge", "--yes")])
def test_a_group_that_is_not_there_is_named(run: Any, words: tuple[str, ...]) -> None:
    failed = run(words[0], "biling", *words[1:])
    assert "there is no consumer group biling" in str(failed.exception)
    assert failed.output == ""
