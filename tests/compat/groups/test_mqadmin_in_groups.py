"""mqadmin, unmodified, in a cluster of several groups of brokers: it counts each group once, finds what any of them
has, and makes topics in one or in all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import raftmq
from cluster.config.local_layout import groups_of
from raftmq.local.cluster import LocalCluster
from raftmq_wire.message_format import encode_message_id
from raftmq_wire.queue_numbers import group_of, number_of
from tests.compat.conftest import all_servers
from tests.compat.kills import leader_of
from tests.compat.many_groups import queues_of, slots_of
from tests.compat.places import stored_in
from tests.compat.test_mqadmin import rows
from tests.support.wait_until import wait

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

Mqadmin = Callable[..., str]
EACH = 5
"""Messages in each queue."""


def broker_names(live: LocalCluster) -> list[str]:
    """Returns the name of each group, in the order of their numbers."""
    return ["raftmq" if group == 1 else f"raftmq-g{group:02}" for group in groups_of(live.nodes)]


def address_of_leader(live: LocalCluster, group: int) -> str:
    name = leader_of(live, group)
    return f"127.0.0.1:{next(node for node in live.nodes if node.name == name).broker_port}"


def fill(mq: raftmq.Client, live: LocalCluster, topic: str) -> None:
    for number in range(EACH):
        for queue in queues_of(live):
            mq.send(topic, b"x", key=f"{queue}-{number}", queue_id=queue)


def commits(mq: raftmq.Client, group: str, topic: str, queue: int, offset: int) -> bool:
    """Commits an offset; returns False if the group of brokers does not know the consumer group yet."""
    try:
        mq.admin.commit(group, topic, queue, offset)
    except raftmq.NotFound:
        return False
    return True


def figures(printed: str, live: LocalCluster) -> list[list[str]]:
    """Returns the words of each line that begins with a group's name."""
    return [row for name in broker_names(live) for row in rows(printed, name)]


def test_it_counts_each_group_once(
    live: LocalCluster,
    mq: raftmq.Client,
    start: Callable[..., Any],
    mqadmin: Mqadmin,
    topic: str,
) -> None:
    fill(mq, live, topic)
    group = f"{topic}-readers"
    reader = start("cpp", "consume", topic, "--group", group, servers=all_servers(live))
    wait(lambda: f"%RETRY%{group}" in mq.admin.topics(), "mqadmin finds a group by that topic, which its members make")
    reader.finish()
    for queue in queues_of(live):
        wait(lambda queue=queue: commits(mq, group, topic, queue, 2), "every group has copied it")  # type: ignore[misc]

    printed = mqadmin("clusterList")
    listed = Counter(row[1] for row in rows(printed, "DefaultCluster"))
    assert listed == Counter(dict.fromkeys(broker_names(live), slots_of(live))), printed

    route = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', mqadmin("topicRoute", "-t", topic)))
    assert {broker["brokerName"] for broker in route["brokerDatas"]} >= {*broker_names(live)}

    printed = mqadmin("topicStatus", "-t", topic)
    found = figures(printed, live)
    assert [(row[0], int(row[1])) for row in found] == [
        (broker_names(live)[group_of(queue) - 1], queue % (1 << 16)) for queue in queues_of(live)
    ], printed
    assert sum(int(row[3]) - int(row[2]) for row in found) == EACH * len(queues_of(live))

    printed = mqadmin("consumerProgress", "-g", group)
    of_topic = rows(printed, topic)
    assert Counter(row[1] for row in of_topic) == Counter(dict.fromkeys(broker_names(live), 3)), printed
    behind = (EACH - 2) * len(queues_of(live))
    assert re.search(rf"Diff Total: {behind}\b", printed), printed
    (row,) = rows(mqadmin("consumerProgress"), group)
    assert row[-1] == str(behind)

    mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
    assert {row.committed for row in mq.admin.offsets(group, topic)} == {0}
    mqadmin("skipAccumulatedMessage", "-g", group, "-t", topic, "-f", "true")
    assert [row.lag for row in mq.admin.offsets(group, topic)] == [0] * len(queues_of(live))


def test_it_finds_a_message_in_whichever_group_it_is(
    live: LocalCluster,
    mq: raftmq.Client,
    mqadmin: Mqadmin,
    topic: str,
    request: pytest.FixtureRequest,
) -> None:
    of_topic = () if request.node.callspec.params["mqadmin"].startswith("4") else ("-t", topic)
    for group in groups_of(live.nodes):
        sent = mq.send(topic, b"x", key=f"in-{group}", queue_id=number_of(group, 1))
        host, _, port = address_of_leader(live, group).rpartition(":")
        printed = mqadmin("queryMsgById", "-i", encode_message_id((host, int(port)), sent.position), *of_topic)
        assert f"in-{group}" in printed, printed
    (last,) = (message for message in stored_in(mq, topic) if message.key == f"in-{groups_of(live.nodes)[-1]}")
    printed = mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", last.message_id)
    assert f"in-{groups_of(live.nodes)[-1]}" in printed, printed
    printed = mqadmin("queryMsgByKey", "-t", topic, "-k", str(last.key))
    assert last.message_id in printed, printed


def test_a_topic_is_made_in_one_group_or_in_all(
    live: LocalCluster,
    mq: raftmq.Client,
    mqadmin: Mqadmin,
    request: pytest.FixtureRequest,
) -> None:
    version = request.node.callspec.params["mqadmin"].replace(".", "-")
    one, each, last = f"in-one-{version}", f"in-all-{version}", groups_of(live.nodes)[-1]

    def queues(name: str) -> list[int]:
        return [queue.queue_id for queue in mq.admin.describe_topic(name).queues]

    made = mqadmin("updateTopic", "-b", address_of_leader(live, last), "-t", one, "-r", "4", "-w", "4")
    assert "success" in made, made
    assert queues(one) == [number_of(last, queue) for queue in range(4)]
    made = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", each, "-r", "4", "-w", "4", "-o", "true")
    assert "success" in made, made
    assert queues(each) == [number_of(group, queue) for group in groups_of(live.nodes) for queue in range(4)]
    wanted = ";".join(f"{name}:4" for name in broker_names(live))
    put = mqadmin("updateOrderConf", "-t", each, "-m", "put", "-v", wanted)
    assert "update orderConf success" in put, put
    told = mqadmin("updateOrderConf", "-t", each, "-m", "get")
    assert all(f"{name}-1:4" in told for name in broker_names(live)), told
    # Of one group, more queues: the others keep theirs.
    made = mqadmin("updateTopic", "-b", address_of_leader(live, last), "-t", each, "-r", "6", "-w", "6", "-o", "true")
    assert Counter(map(group_of, queues(each))) == {**dict.fromkeys(groups_of(live.nodes), 4), last: 6}
    for name in (one, each):
        printed = mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", name)
        assert "success" in printed, printed
        assert name not in mq.admin.topics()
        assert name not in mqadmin("topicList")


def test_a_consumer_group_is_made_and_deleted_once(
    live: LocalCluster,
    mq: raftmq.Client,
    mqadmin: Mqadmin,
    request: pytest.FixtureRequest,
) -> None:
    group = f"short-lived-{request.node.callspec.params['mqadmin'].replace('.', '-')}"
    address = address_of_leader(live, groups_of(live.nodes)[-1])
    assert "success" in mqadmin("updateSubGroup", "-b", address, "-g", group)
    assert group in mq.admin.groups()
    assert "success" in mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", group, "-r", "5")
    printed = mqadmin("getConsumerConfig", "-g", group)
    assert re.findall(r"retryMaxTimes *= *(\d+)", printed) == ["5"] * len(groups_of(live.nodes)), printed
    assert "success" in mqadmin("deleteSubGroup", "-c", "DefaultCluster", "-g", group)
    assert group not in mq.admin.groups()


def test_it_sends_to_a_named_broker_and_reads_its_figures(
    live: LocalCluster,
    mq: raftmq.Client,
    mqadmin: Mqadmin,
    topic: str,
) -> None:
    last = groups_of(live.nodes)[-1]
    printed = mqadmin("sendMessage", "-t", topic, "-p", "hello", "-b", broker_names(live)[-1], "-i", "2")
    assert "SEND_OK" in printed, printed
    assert {message.queue_id for message in stored_in(mq, topic)} == {number_of(last, 2)}
    printed = mqadmin("consumeMessage", "-t", topic)
    assert "hello" in printed, printed
    printed = mqadmin("brokerStatus", "-b", address_of_leader(live, last))
    told: dict[str, Any] = dict(re.findall(r"^(\S+) *: (.*?)\s*$", printed, re.MULTILINE))
    assert told.get("brokerActive") == "true", printed
