"""A broker's figures (28), a topic's offsets (202), connected producers (204), messages of late
(315): what mqadmin prints of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.cluster_keys import CLUSTER_KEYS
from cluster.config.node_sections import Listener, TlsMode
from cluster.remoting.handlers.broker_stats import ROCKETMQ_NAMES, broker_settings
from raftlog.types import NodeId


def test_figures_are_those_of_the_node_that_is_asked(node: Any) -> None:
    node.leader = NodeId(1)
    node.figures = {"putTps": "1.00 2.00 3.00"}
    assert json.loads(node.ask(28).answer.body) == {"table": {"putTps": "1.00 2.00 3.00"}}


def test_the_configuration_is_lines_of_names_and_values(node: Any) -> None:
    answer = node.ask(26).answer
    assert answer.code == 0
    assert json.loads(answer.ext["version"])["counter"] == 1
    told = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert told["brokerName"] == node.config.cluster.broker_name
    assert told["fileReservedTime"] == told["retention.hours"] == str(node.config.retention.hours)
    assert told["slaveReadEnable"] == told["modes.slave_read_enable"] == "false"
    assert set(ROCKETMQ_NAMES) | set(CLUSTER_KEYS) == set(told)
    assert not {name for name in told if name.startswith(("node.", "tier.url", "backup.", "peer."))}


EXPORTED = (
    "autoCreateSubscriptionGroup autoCreateTopicEnable brokerClusterName brokerId brokerName brokerRole",
    "fileReservedTime filterServerNums flushDiskType maxMessageSize messageDelayLevel msgTraceTopicName",
    "slaveReadEnable traceOn traceTopicEnable useTLS",
)
"""The keys that exportConfigs of mqadmin 4.9.8 and 5.5.0 looks for; the older fails with a NullPointerException without
one."""


def test_the_configuration_has_all_that_is_exported(node: Any) -> None:
    told = dict(line.split("=", 1) for line in node.ask(26).answer.body.decode().splitlines())
    assert set(" ".join(EXPORTED).split()) <= set(told)
    assert told["maxMessageSize"] == told["limits.message_bytes_max"]


@pytest.mark.parametrize(
    ("mode", "own", "told"),
    [
        ("disabled", "", "false"),
        ("permissive", "", "false"),
        ("enforcing", "", "true"),
        ("enforcing", "permissive", "false"),
        ("disabled", "enforcing", "true"),
    ],
)
def test_use_tls_is_what_rocketmq_tells_of_that_mode(node: Any, mode: TlsMode, own: TlsMode, told: str) -> None:
    config, listener = node.config, Listener(name="broker", port=10911, tls=own)
    asked = replace(config, listeners=(listener,), tls=replace(config.tls, mode=mode))
    assert f"\nuseTLS={told}\n" in broker_settings(asked).decode()


def test_offsets_of_a_topic(node: Any) -> None:
    node.create_topic("T", queues=2)
    node.store("T", b"a")
    node.advance(10)
    node.store("T", b"b", b"c")
    body = node.ask(202, topic="T").answer.body.decode()
    rows = {
        json.loads(key)["queueId"]: json.loads(value)
        for key, value in re.findall(r'(\{"brokerName":"raftmq"[^{}]*\}):(\{[^{}]*\})', body)
    }
    assert rows == {
        0: {"lastUpdateTimestamp": node.now_ms, "maxOffset": 3, "minOffset": 0},
        1: {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
    }
    assert body.endswith('},"topicPutTps":0.0}')


def test_offsets_that_cannot_be_told(node: Any) -> None:
    assert node.ask(202).answer.code == 29
    assert node.ask(202, topic="T").answer.code == 17
    node.create_topic("T", queues=10_001)
    assert node.ask(202, topic="T").answer[:2] == (1, "topic T has 10001 queues, 10000 fit one answer")
    node.confirms = False
    assert node.ask(202, topic="T").answer.code == 14


MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def counts(node: Any, name: str, key: str) -> list[int]:
    """The sums of the last minute, hour and day; each rate is that of its window."""
    told = json.loads(node.ask(315, statsName=name, statsKey=key).answer.body)
    fields = {"statsMinute": MINUTE, "statsHour": HOUR, "statsDay": DAY}
    assert {field: each["tps"] for field, each in told.items()} == {
        field: told[field]["sum"] * 1000 / window_ms for field, window_ms in fields.items()
    }
    return [told[field]["sum"] for field in fields]


def test_the_messages_of_a_topic_in_the_last_minute_hour_and_day(node: Any) -> None:
    node.create_topic("T", queues=2)
    node.create_topic("U", queues=1)
    assert counts(node, "TOPIC_PUT_NUMS", "T") == [0, 0, 0]
    for messages, then_ms in ((1, DAY), (2, DAY - HOUR), (4, HOUR - MINUTE), (8, MINUTE)):
        node.store("T", *[b"m"] * messages)
        node.store("T", b"m", queue_id=1)
        node.advance(then_ms)
    node.store("U", b"m")
    assert counts(node, "TOPIC_PUT_NUMS", "T") == [8 + 1, 4 + 8 + 2, 2 + 4 + 8 + 3]
    assert counts(node, "QUEUE_PUT_NUMS", "T@0") == [8, 12, 14]
    assert counts(node, "QUEUE_PUT_NUMS", "T@1") == [1, 2, 3]
    assert counts(node, "TOPIC_PUT_NUMS", "U") == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nothing"),
        ("TOPIC_PUT_NUMS", "T@0"),
        ("QUEUE_PUT_NUMS", "T"),
        ("QUEUE_PUT_NUMS", "T@1"),
        ("QUEUE_PUT_NUMS", "T@-1"),
        ("QUEUE_PUT_NUMS", "T@" + "9" * 200),
        ("GROUP_GET_NUMS", "T@g"),
        ("TOPIC_PUT_SIZE", "T"),
    ],
)
def test_counts_that_there_are_not(node: Any, name: str, key: str) -> None:
    node.create_topic("T", queues=1)
    node.store("T", b"m")
    code, remark = node.ask(315, statsName=name, statsKey=key).answer[:2]
    assert (code, remark) == (1, f"The stats <{name}> <{key[:120]}> not exist")
    assert node.ask(315, statsName=name).answer.code == 29


def test_producers(node: Any) -> None:
    assert node.ask(204).answer.code == 29
    assert node.ask(204, producerGroup="p", topic="T").answer[:2] == (1, "the producer group[p] not exist")
    for client in ("b", "a"):
        node.ask(34, json.dumps({"clientID": client, "producerDataSet": [{"groupName": "p"}]}).encode())
    told = json.loads(node.ask(204, producerGroup="p").answer.body)["connectionSet"]
    assert [(row["clientId"], row["clientAddr"], row["language"], row["version"]) for row in told] == [
        ("a", "10.9.9.9:40000", "JAVA", 401),
        ("b", "10.9.9.9:40000", "JAVA", 401),
    ]
