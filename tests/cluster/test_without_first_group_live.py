"""What a cluster of two groups of brokers answers while the first one, which has topics, users and settings of all, has
no leader. The table in docs/guarantees.md says the same."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.client_kit.fields import beat_body, group_body, place_of, send_fields, topic_fields
from jepsen_like.client_kit.frames import HOST, frames_of, request
from raftmq import Resolution
from raftmq.client import connect
from raftmq.client.sync import Client
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.credentials import address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.process import free_base_port
from raftmq_wire.codec import FLAG_RESPONSE
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import number_of
from tests.support.pace import at_most
from tests.support.small_segments import small_segments

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.timeout(400)]

QUEUE = number_of(2, 0)
OK = "works"


class World:
    """The second group's node, as clients see it while the first group is away."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.node = cluster.of_group(2)[0]
        self.servers = ";".join(f"{HOST}:{node.namesrv_port}" for node in cluster.nodes)
        self.mq: Client = connect(self.servers, timeout_s=at_most(20))

    def prepare(self) -> None:
        """Makes what is there before the first group goes."""
        admin = self.mq.admin
        for topic, groups in (("both", [1, 2]), ("first", [1]), ("second", [2])):
            admin.create_topic(topic, queues=1, groups=groups)
        for group in ("known", "bare", "readers"):
            admin.create_group(group)
        for topic in ("both", "second"):
            self.mq.send(topic, b"before", queue_id=QUEUE)
        (message,) = self.mq.pull("second", QUEUE, 0).messages
        self.back = message
        assert [self.send_back("known", level) for level in (1, -1)] == [OK, OK]  # makes %RETRY%known and %DLQ%known
        assert self.http("POST", "/v1/users", {"name": "clerk", "secret": "a-secret-of-clerk", "type": "Normal"}) == OK
        assert self.beat("known") == OK

    # --- requests in the form of RocketMQ's clients

    def raw(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> str:
        """Asks the second group's node, whose leader it is. Returns "works" for code 0, else the code."""
        with socket.create_connection((HOST, self.node.broker_port), timeout=at_most(10)) as connection:
            connection.settimeout(at_most(10))
            connection.sendall(request(code, fields, body, opaque=1)[1])
            buffer = bytearray()
            while data := connection.recv(1 << 16):
                buffer += data
                for header, _ in frames_of(buffer):
                    if header.flag & FLAG_RESPONSE:  # a member of a group is also told that it has changed
                        return OK if header.code == 0 else str(header.code)
        raise ConnectionError("closed without an answer")

    def send_back(self, group: str, level: int) -> str:
        fields = {
            "offset": str(self.back.position),
            "group": group,
            "delayLevel": str(level),
            "originMsgId": self.back.message_id,
            "originTopic": "second",
            "maxReconsumeTimes": "16",
        }
        return self.raw(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    def beat(self, group: str) -> str:
        return self.raw(RequestCode.HEART_BEAT, body=beat_body("c@1", [group], ["second"]))

    def lock(self, code: int) -> str:
        queue = {"topic": "second", "brokerName": "any", "queueId": 0}
        return self.raw(code, body=json.dumps({"consumerGroup": "known", "clientId": "c@1", "mqSet": [queue]}).encode())

    # --- requests of operators

    def http(self, method: str, path: str, body: Any = None) -> str:
        """Asks the second group over HTTP. Returns "works" for success, else the status."""
        data = None if body is None else json.dumps(body).encode()
        reply = exchange(address_of(self.node), method, path, data, timeout_s=at_most(20), is_page=True)
        return OK if reply.status < 300 else str(reply.status)

    # --- through our client

    def does(self, act: Callable[[Client], object]) -> str:
        act(self.mq)
        return OK


def transaction(mq: Client) -> None:
    with (
        mq.transaction_producer("shop", check=lambda _: Resolution.COMMIT) as producer,
        producer.transaction("second", b"half", queue_id=QUEUE),
    ):
        pass


def commit(mq: Client) -> None:
    mq.admin.commit("readers", "second", QUEUE, 1)
    assert mq.admin.committed("readers", "second", QUEUE) == 1


def read(mq: Client) -> None:
    with mq.consumer("known", "both", max_wait_s=at_most(20)) as consumer:
        assert next(iter(consumer)).body


def delayed(mq: Client) -> None:
    handle = mq.send("second", b"later", queue_id=QUEUE, delay=60).recall_handle
    mq.recall("second", handle)


R = RequestCode
ANSWERS: dict[str, tuple[list[Callable[[World], str]], str]] = {
    "send to a queue of another group, with and without a key, a batch": (
        [
            lambda w: w.raw(R.SEND_MESSAGE_V2, send_fields("both"), b"x"),
            lambda w: w.does(lambda mq: mq.send("second", b"x", ordering_key="k")),
            lambda w: w.does(lambda mq: mq.send_batch("second", [b"x", b"y"], queue_id=QUEUE)),
        ],
        OK,
    ),
    "send of our client without a key, to a topic of both": (
        [lambda w: w.does(lambda mq: [mq.send("both", b"x") for _ in range(3)])],
        OK,
    ),
    "delayed message, and its recall": ([lambda w: w.does(delayed)], OK),
    "transaction": ([lambda w: w.does(transaction)], OK),
    "pull, and a consumer of a known consumer group": (
        [lambda w: w.does(lambda mq: mq.pull("second", QUEUE, 0)), lambda w: w.does(read)],
        OK,
    ),
    "commit and query of offsets, reset": (
        [
            lambda w: w.does(commit),
            lambda w: w.raw(
                R.INVOKE_BROKER_TO_RESET_OFFSET,
                {"topic": "second", "group": "known", "timestamp": "0", "isForce": "true"},
            ),
            lambda w: w.http("POST", "/v1/groups/known/reset", {"topic": "second", "to": "earliest"}),
        ],
        OK,
    ),
    "queue locks (41, 42)": ([lambda w: w.lock(R.LOCK_BATCH_MQ), lambda w: w.lock(R.UNLOCK_BATCH_MQ)], OK),
    "heartbeat of a known consumer group (34)": ([lambda w: w.beat("known")], OK),
    "message that is sent back, dead letter, if the group's %RETRY% or %DLQ% is there": (
        [lambda w: w.send_back("known", 2), lambda w: w.send_back("known", -1)],
        OK,
    ),
    "route (105), cluster (106), lists of topics and groups, offsets, users, configuration": (
        [
            lambda w: w.raw(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "both"}),
            lambda w: w.raw(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "first"}),
            lambda w: w.raw(R.GET_BROKER_CLUSTER_INFO),
            lambda w: w.raw(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            lambda w: w.raw(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            lambda w: w.raw(R.GET_MAX_OFFSET, {"topic": "second", "queueId": "0"}),
            *(
                lambda w, path=path: w.http("GET", path)
                for path in ("/v1/topics?consistency=linearizable", "/v1/groups", "/v1/users", "/v1/config")
            ),
        ],
        OK,
    ),
    "message that is sent back, dead letter, if the group's %RETRY% or %DLQ% would have to be made": (
        [lambda w: w.send_back("bare", 1), lambda w: w.send_back("bare", -1)],
        "14",
    ),
    "first send to a topic that is not there": (
        [lambda w: w.raw(R.SEND_MESSAGE_V2, send_fields("unknown"), b"x")],
        "14",
    ),
    "make, change or delete a topic (17, 215)": (
        [
            lambda w: w.raw(R.UPDATE_AND_CREATE_TOPIC, topic_fields("made")),
            lambda w: w.raw(R.UPDATE_AND_CREATE_TOPIC, topic_fields("second", 2)),
            lambda w: w.raw(R.DELETE_TOPIC_IN_BROKER, {"topic": "second"}),
        ],
        "14",
    ),
    "make or delete a consumer group (200, 207)": (
        [
            lambda w: w.raw(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group_body("made")),
            lambda w: w.raw(R.DELETE_SUBSCRIPTIONGROUP, {"groupName": "bare"}),
        ],
        "14",
    ),
    "the same over HTTP, users, rules, configuration of the cluster": (
        [
            lambda w: w.http("POST", "/v1/topics", {"name": "made"}),
            lambda w: w.http("POST", "/v1/groups", {"name": "made"}),
            lambda w: w.http("POST", "/v1/users", {"name": "new", "secret": "a-secret-of-new", "type": "Normal"}),
            lambda w: w.http("PUT", "/v1/acl/clerk", {"rules": [{"resource": "Topic:x", "actions": ["Pub"]}]}),
            lambda w: w.http("PUT", "/v1/config", {"values": {"retention.hours": 48}}),
        ],
        "503",
    ),
    "disable or delete a user over HTTP": (
        [
            lambda w: w.http("PUT", "/v1/users/clerk", {"enabled": False}),
            lambda w: w.http("DELETE", "/v1/users/clerk"),
        ],
        OK,
    ),
    "heartbeat of a consumer group that is not there: it is made by one after the return": (
        [lambda w: w.beat("newcomers")],
        OK,
    ),
    "commit of such a consumer group (15)": (
        [lambda w: w.raw(R.UPDATE_CONSUMER_OFFSET, place_of("newcomers", "second", 0) | {"commitOffset": "1"})],
        "26",
    ),
    "send to a queue of the first group, at a node of another": (
        [lambda w: w.raw(R.SEND_MESSAGE_V2, send_fields("first"), b"x")],
        "29",
    ),
}
"""What is asked -> how, and what is answered."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    cluster = LocalCluster(tmp_path_factory.mktemp("first") / "data")
    with small_segments():
        cluster.up(1, free_base_port(16), groups=2, timeout_s=at_most(60))
    made = World(cluster)
    try:
        made.prepare()
        cluster.kill(cluster.of_group(1)[0].name)
        yield made
    finally:
        made.mq.close()
        cluster.down()


@pytest.mark.parametrize("what", ANSWERS)
def test_what_is_answered(world: World, what: str) -> None:
    acts, answer = ANSWERS[what]
    assert [act(world) for act in acts] == [answer] * len(acts)


def test_nothing_was_made_meanwhile(world: World) -> None:
    """After all that was refused the second group has what the first one made, and no more."""
    topics = {*world.mq.admin.topics()}
    assert {"both", "first", "second"} <= topics
    assert topics.isdisjoint({"made", "unknown", "%RETRY%bare", "%DLQ%bare"})
    assert {"known", "bare", "readers"} <= {*world.mq.admin.groups()} <= {"known", "bare", "readers", "TOOLS_CONSUMER"}


def test_the_documentation_says_the_same() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (works|\d+) \|", text.partition("## While the first group")[2], re.MULTILINE)
    assert [(what.replace("`", ""), answer) for what, answer in rows] == [(w, a) for w, (_, a) in ANSWERS.items()]
