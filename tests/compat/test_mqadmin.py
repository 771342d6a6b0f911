"""mqadmin, unmodified: what it prints of consumers is what our own client knows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

QUEUES, MESSAGES = 4, 40
Start = Callable[..., Any]


def rows(printed: str, first: str) -> list[list[str]]:
    """The words of each line that begins with `first`."""
    return [line.split() for line in printed.splitlines() if line.split()[:1] == [first]]


def test_what_it_prints_of_consumers(
    mq: raftmq.Client, start: Start, mqadmin: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    version = request.node.callspec.params["mqadmin"].replace(".", "-")
    topic, group = f"mqadmin-{version}", f"mqadmin-{version}-readers"
    mq.admin.create_topic(topic, QUEUES)
    reader = start("cpp", "consume", topic, "--group", group)
    reader.wait("ready")
    with mq.producer() as producer:
        for number in range(MESSAGES):
            producer.send_soon(topic, b"m", key=f"k{number}", tag="t", properties={"shade": "s"})
    reader.wait("message", MESSAGES)
    deadline = time.monotonic() + at_most(30)
    while any(row.lag for row in mq.admin.offsets(group, topic)) and time.monotonic() < deadline:
        time.sleep(0.5)

    (row,) = rows(mqadmin("consumerProgress"), group)
    assert (row[1], row[-1]) == ("1", "0"), "one consumer is connected, and behind by nothing"
    assert "OFFLINE" not in row
    assert "CLUSTERING" in row
    each = [line for line in rows(mqadmin("consumerProgress", "-g", group), topic) if line[0] == topic]
    assert len(each) == QUEUES
    assert sum(int(line[3]) for line in each) == sum(int(line[4]) for line in each) == MESSAGES
    assert group in mqadmin("consumerConnection", "-g", group) or "CPP" in mqadmin("consumerConnection", "-g", group)

    reader.finish()
    mq.send(topic, b"one more", key="k", tag="t")
    (row,) = rows(mqadmin("consumerProgress"), group)
    assert ("OFFLINE" in row, row[-1]) == (True, "1")

    listed = [line.split() for line in mqadmin("topicList", "-c").splitlines() if topic in line.split()]
    assert listed == [["DefaultCluster", topic, group]]


def test_what_it_prints_of_brokers_and_producers(
    live: LocalCluster, mq: raftmq.Client, start: Start, mqadmin: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    version = request.node.callspec.params["mqadmin"].replace(".", "-")
    topic, group = f"figures-{version}", f"figures-{version}-writers"
    mq.admin.create_topic(topic, QUEUES)
    producer = start("java", "produce", topic, "--group", group, "--pace-ms", "20")
    producer.wait("send", 200)

    listed = {row[2]: row for row in rows(mqadmin("clusterList"), "DefaultCluster")}
    assert len(listed) == len(live.nodes)
    assert [row[1] for row in listed.values()] == ["raftmq"] * len(listed)
    assert all(row[4] == "RaftMQ" for row in listed.values())
    assert float(listed["0"][6].partition("(")[0]) > 0, "messages per second of the leader"

    leader = next(node for node in live.nodes if node.id == live.wait_leader())
    printed = mqadmin("brokerStatus", "-b", f"127.0.0.1:{leader.broker_port}").splitlines()
    figures = {name.strip(): value.strip() for name, found, value in (line.partition(":") for line in printed) if found}
    assert figures["brokerActive"] == "true"
    assert float(figures["putTps"].split()[0]) > 0

    offsets = rows(mqadmin("topicStatus", "-t", topic), "raftmq")
    assert [(row[1], row[2]) for row in offsets] == [(str(queue), "0") for queue in range(QUEUES)]
    assert sum(int(row[3]) for row in offsets) >= 200

    told = mqadmin("producerConnection", "-g", group, "-t", topic)
    assert "JAVA" in told, told
    key = producer.lines("send")[0]
    found = mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", key["msg_id"])
    assert key["key"] in found
    producer.finish()


def test_ordered_topics(mqadmin: Callable[..., str], request: pytest.FixtureRequest) -> None:
    topic = "ordered-" + request.node.callspec.params["mqadmin"].replace(".", "-")
    made = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4", "-o", "true")
    assert "set cluster orderConf. isOrder=true, orderConf=[raftmq:4]" in made
    assert "raftmq-1:4;raftmq-2:4;raftmq-3:4" in mqadmin("updateOrderConf", "-t", topic, "-m", "get")
    assert "delete orderConf success" in mqadmin("updateOrderConf", "-t", topic, "-m", "delete")
    assert "raftmq-1:4" not in mqadmin("updateOrderConf", "-t", topic, "-m", "get")
    assert "update orderConf success" in mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", "raftmq:4")
    assert "raftmq-1:4" in mqadmin("updateOrderConf", "-t", topic, "-m", "get")
    assert "is not broker:queues" in mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:4")


def test_offsets_of_a_group_that_does_not_run(
    mq: raftmq.Client, mqadmin: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    version = request.node.callspec.params["mqadmin"].replace(".", "-")
    topic, group = f"idle-{version}", f"idle-{version}-readers"
    mq.admin.create_topic(topic, 1)
    for _ in range(3):
        mq.send(topic, b"m")
    mq.admin.create_group(group)
    mq.admin.commit(group, topic, 0, 1)

    mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
    assert mq.admin.committed(group, topic, 0) == 0
    mqadmin("skipAccumulatedMessage", "-g", group, "-t", topic, "-f", "true")
    assert mq.admin.committed(group, topic, 0) == 3


def test_the_configuration_is_exported(mqadmin: Callable[..., str], tmp_path: Path) -> None:
    assert "success" in mqadmin("exportConfigs", "-c", "DefaultCluster", "-f", str(tmp_path))
    exported = json.loads((tmp_path / "configs.json").read_text())
    assert exported["clusterScale"] == {"namesrvSize": 3, "masterBrokerSize": 1, "slaveBrokerSize": 2}
    assert exported["brokerConfigs"]["raftmq"]["maxMessageSize"] == str(4 << 20)


def test_a_group_is_deleted_in_the_cluster(mq: raftmq.Client, mqadmin: Callable[..., str]) -> None:
    mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "short-lived")
    assert "short-lived" in mq.admin.groups()
    assert "success" in mqadmin("deleteSubGroup", "-c", "DefaultCluster", "-g", "short-lived")
    assert "short-lived" not in mq.admin.groups()


def test_the_configuration_of_a_broker(mqadmin: Callable[..., str], live: LocalCluster) -> None:
    printed = mqadmin("getBrokerConfig", "-b", f"127.0.0.1:{live.nodes[0].broker_port}")
    told = dict(re.findall(r"^(\S+) *=  (.*?)\s*$", printed, re.MULTILINE))
    assert (told["brokerName"], told["fileReservedTime"], told["retention.hours"]) == ("raftmq", "72", "72")


def test_every_permission_of_a_topic_is_changed_to_every_other(
    live: LocalCluster, mq: raftmq.Client, mqadmin: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    """It compares with what a route says of the broker name at that address (ADR 0010)."""
    topic = f"perms-{request.node.callspec.params['mqadmin'].replace('.', '-')}"
    mq.admin.create_topic(topic, QUEUES)
    leader = next(node for node in live.nodes if node.id == live.wait_leader())
    now = 6
    for perm in (4, 4, 2, 6, 2, 4, 6):
        printed = mqadmin("updateTopicPerm", "-t", topic, "-b", f"127.0.0.1:{leader.broker_port}", "-p", str(perm))
        assert ("new perm equals to the old one!" if perm == now else f"from {now} to {perm} ") in printed
        now = perm
    assert len(mq.admin.describe_topic(topic).queues) == QUEUES
