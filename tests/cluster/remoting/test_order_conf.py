"""The name server's key-value table as mqadmin writes it (100, 102): a topic's order, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row

SPACE = {"namespace": "ORDER_TOPIC_CONFIG"}


def shown(node: Any, topic: str = "T") -> str | None:
    value: str | None = node.ask(101, **SPACE, key=topic).answer.ext.get("value")
    return value


@pytest.mark.parametrize("value", ["raftmq:3", "raftmq-1:3;raftmq-2:3", "raftmq-1:3;raftmq-2:3;raftmq-3:3;raftmq:3"])
def test_a_topic_is_ordered_until_its_row_is_deleted(node: Any, value: str) -> None:
    node.create_topic("T", queues=3, attributes={"dedup": "off"})
    before = node.state.topics["T"]
    assert node.ask(100, **SPACE, key="T", value=value).answer.code == 0
    assert shown(node) == "raftmq-1:3;raftmq-2:3;raftmq-3:3", "whatever was put, the same for all"
    assert node.ask(102, **SPACE, key="T").answer.code == 0
    assert shown(node) is None
    assert node.state.topics["T"] == before, "the rest of the topic stays"


def test_a_topic_of_two_groups_is_put_in_order_with_the_names_and_queues_of_both(node: Any) -> None:
    node.command(Finalize(GROUPS_LEVEL))
    node.command(AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3)))
    node.command(CreateTopic({"name": "T", "place": [[1, 3, 3], [2, 4, 4]]}, False))
    node.command(CreateTopic({"name": "elsewhere", "place": [[2, 4, 4]]}, False))
    both = "raftmq:3;raftmq-g02-2:4"
    unknown = node.ask(100, **SPACE, key="T", value=both).answer
    assert (unknown.code, "does not know yet where all queues" in unknown.remark) == (14, True)
    members = [GroupMember(each, "h", 1, "", {"broker": f"10.0.1.{each}:10911"}) for each in (1, 2)]
    node.other_groups[2] = GroupRecord(2, "raftmq-g02", Epoch(1, 1), 2, members)
    wrong = node.ask(100, **SPACE, key="T", value="raftmq-g02:3").answer
    assert "topic T has 4 queues for producers" in (wrong.remark or ""), wrong
    wrong = node.ask(100, **SPACE, key="T", value="raftmq-g02-4:4").answer
    assert "raftmq-3, raftmq-g02, raftmq-g02-1, raftmq-g02-2, raftmq-g02-3" in (wrong.remark or ""), wrong
    away = node.ask(100, **SPACE, key="elsewhere", value="raftmq:4").answer.remark
    assert "with one of the brokers raftmq-g02, raftmq-g02-1, raftmq-g02-2, raftmq-g02-3" in away
    assert node.ask(100, **SPACE, key="T", value=both).answer.code == 0
    assert node.ask(100, **SPACE, key="elsewhere", value="raftmq-g02:4").answer.code == 0
    assert shown(node) == "raftmq-1:3;raftmq-2:3;raftmq-3:3;raftmq-g02-1:4;raftmq-g02-2:4;raftmq-g02-3:4"
    assert shown(node, "elsewhere") == "raftmq-g02-1:4;raftmq-g02-2:4;raftmq-g02-3:4"


def test_what_is_so_already_is_not_written_again(node: Any) -> None:
    node.create_topic("T", queues=3, order=True)
    assert node.ask(100, **SPACE, key="T", value="raftmq:3").answer.code == 0
    assert node.ask(102, **SPACE, key="none").answer.code == 0
    assert node.proposed == []


@each_row(
    ("fields", "code", "why"),
    [
        ({}, 29, "needs field namespace"),
        ({"namespace": "OTHER", "key": "T", "value": "raftmq:3"}, 29, "ORDER_TOPIC_CONFIG alone, not OTHER"),
        ({**SPACE, "value": "raftmq:3"}, 29, "needs field key"),
        ({**SPACE, "key": "T"}, 29, "needs field value"),
        ({**SPACE, "key": "none", "value": "raftmq:3"}, 17, "none"),
        ({**SPACE, "key": "T", "value": "broker-a:3"}, 29, "'broker-a:3' is not broker:queues with one of the brokers"),
        ({**SPACE, "key": "T", "value": "raftmq:3;"}, 29, "'' is not broker:queues"),
        ({**SPACE, "key": "T", "value": "3"}, 29, "'3' is not broker:queues"),
        ({**SPACE, "key": "T", "value": "raftmq:4"}, 29, "topic T has 3 queues for producers"),
        ({**SPACE, "key": "T", "value": "raftmq:" + "9" * 4000}, 29, "topic T has 3 queues for producers"),
        ({**SPACE, "key": "T", "value": "x" * 5000}, 29, "4096 are allowed"),
    ],
)
def test_rows_that_nobody_would_keep_are_refused(node: Any, fields: dict[str, str], code: int, why: str) -> None:
    node.create_topic("T", queues=3)
    answer = node.ask(100, **fields).answer
    assert answer.code == code
    assert why in (answer.remark or "")
    assert len(answer.remark or "") < 500
    assert node.proposed == []
