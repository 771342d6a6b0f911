"""Changes that can be asked for by remoting and over HTTP: what one way refuses, the other refuses too, and neither has
changed anything then."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from cluster.admin.errors import ApiError
from cluster.admin.handler_request import AdminHandler, Call
from cluster.admin.handlers.group_changes import (
    CloneRequest,
    GroupRequest,
    ResetRequest,
    clone_group,
    create_group,
    delete_group,
    reset_group,
)
from cluster.admin.handlers.topics import TopicRequest, create_topic, delete_topic
from cluster.admin.node_interface import AdminPort
from cluster.broker.name_rules import FORBIDDEN_TOPICS, SYSTEM_TOPICS
from cluster.replication.outcome import Outcome
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode as Code
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import CHANGES_LEVEL
from tests.cluster.sim.test_sim_cluster_level import propose
from tests.support.sim_cluster import SimCluster, codes

NAMES = ("plain", "%RETRY%g", "%DLQ%g", "a b", "", "ü", "a.b", "x" * 120, "x" * 121, "x" * 127, "x" * 128, "x" * 300)
QUEUES = (0, 1, 1024, 1025, 65_535, 65_536)
PERMS = (-1, 0, 2, 4, 6, 7, 8, 15, 16)
ATTRIBUTES = (
    ("dedup", "strict"),
    ("dedup", "sometimes"),
    ("ack.level", "all"),
    ("ack.level", "none"),
    ("retention.ms", "60000"),
    ("retention.ms", "-1"),
    ("retention.ms", "soon"),
    ("tier.read", "any"),
    ("message.type", "FIFO"),
    ("message.type", "LIFO"),
    ("queue.type", "BatchCQ"),
    ("cleanup.policy", "COMPACTION"),
    ("colour", "red"),
)
TRIES = (-2, -1, 0, 16, 1 << 31)


class Doors:
    """Both ways to change something on the leader. Each method returns True if it was done."""

    def __init__(self, sim: SimCluster) -> None:
        self._sim = sim
        self._node = sim.leader()
        self._path = self._node.connect()
        self._next = 0
        self._port: AdminPort | None = None

    def remoting(self, code: int, ext: Mapping[str, Any], body: bytes = b"") -> bool:
        """Sends a request."""
        self._next += 1
        opaque = self._next
        fields = {name: str(value) for name, value in ext.items()}
        self._path.ask(encode_frame(code, opaque, 0, ext=fields, body=body, language="JAVA", version=477))
        self._sim.loop.run_until(lambda: codes(self._path, opaque), 10, f"an answer to {code} {fields}")
        return codes(self._path, opaque) == [0]

    def http(self, handler: AdminHandler, body: Mapping[str, Any] | None, kind: Any, **params: str) -> bool:
        """Sends a request with a body of this kind, which the server decodes before the handler is called."""

        async def done() -> bool:
            if self._port is None:
                self._port = self._node.running.admin_port()
            watch: Any = None
            try:
                decoded = None if body is None else msgspec.convert(body, kind)
                await handler(Call(self._port, watch, params, decoded, "local", owner=self))
            except (ApiError, msgspec.ValidationError):
                return False
            return True

        task = self._node.run(lambda: self._sim.loop.create_task(done()))
        self._sim.loop.run_until(task.done, 10, f"an answer over HTTP to {handler.__name__} {body}")
        return task.result()

    def topic(self, over_http: bool, name: str, **wanted: Any) -> bool:
        """Creates or changes a topic."""
        queues, perm, attributes = wanted.get("queues", 1), wanted.get("perm", 6), wanted.get("attributes", {})
        if over_http:
            body = {"name": name, "queues": queues, "perm": perm, "attributes": attributes, "if_exists": "update"}
            return self.http(create_topic, body, TopicRequest)
        changes = ",".join(f"+{key}={value}" for key, value in attributes.items())
        ext = {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
        more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "defaultTopic": "TBW102"}
        return self.remoting(Code.UPDATE_AND_CREATE_TOPIC, {**ext, **more, "attributes": changes})

    def group(self, over_http: bool, name: str, tries: int = 16) -> bool:
        """Creates or changes a group."""
        if over_http:
            wanted = {"name": name, "retry_max_times": tries, "if_exists": "update"}
            return self.http(create_group, wanted, GroupRequest)
        body = json.dumps({"groupName": name, "retryMaxTimes": tries}).encode()
        return self.remoting(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(73) as made:
        made.leader()
        yield made


@pytest.fixture
def doors(sim: SimCluster) -> Doors:
    return Doors(sim)


WISHES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in (*NAMES, *sorted(SYSTEM_TOPICS | FORBIDDEN_TOPICS))),
    *(("sized", {"queues": queues}) for queues in QUEUES),
    *(("open", {"perm": perm}) for perm in PERMS),
    *(("special", {"attributes": dict([pair])}) for pair in ATTRIBUTES),
]


def test_a_topic_is_judged_alike(sim: SimCluster, doors: Doors) -> None:
    unlike = []
    for name, wanted in WISHES:
        outcomes = []
        for over_http in (False, True):
            done = doors.topic(over_http, name, **wanted)
            stored = sim.leader().state.topics.get(name)
            outcomes.append((done, stored and (stored.queues, stored.perm, dict(stored.attributes))))
            if stored is not None and not doors.remoting(Code.DELETE_TOPIC_IN_BROKER, {"topic": name}):
                raise AssertionError(f"{name} cannot be deleted")
        if outcomes[0] != outcomes[1] or outcomes[0][0] != (outcomes[0][1] is not None):
            unlike.append(f"{name[:40]} {wanted}: remoting {outcomes[0]}, HTTP {outcomes[1]}")
    assert unlike == []


def test_a_group_is_judged_alike(sim: SimCluster, doors: Doors) -> None:
    unlike = []
    for name, tries in [*((name, 16) for name in NAMES), *(("patient", tries) for tries in TRIES)]:
        outcomes = []
        for over_http in (False, True):
            done = doors.group(over_http, name, tries)
            stored = sim.leader().state.groups.get(name)
            outcomes.append((done, stored and stored.retry_max_times))
            if stored is not None:
                ext = {"groupName": name, "cleanOffset": "true"}
                assert doors.remoting(Code.DELETE_SUBSCRIPTIONGROUP, ext), name
        if outcomes[0] != outcomes[1] or outcomes[0][0] != (outcomes[0][1] is not None):
            unlike.append(f"{name[:40]} {tries}: remoting {outcomes[0]}, HTTP {outcomes[1]}")
    assert unlike == []


@pytest.mark.parametrize("topic", ["T", "nothing"])
@pytest.mark.parametrize("group", ["g", "nobody"])
@pytest.mark.parametrize("queue", [None, 0, 9])
def test_a_reset_is_judged_alike(sim: SimCluster, doors: Doors, topic: str, group: str, queue: int | None) -> None:
    assert doors.topic(False, "T")
    assert doors.group(False, "g")
    ext = {"group": group, "topic": topic, "timestamp": -2, "isForce": "true"}
    by_remoting = doors.remoting(
        Code.INVOKE_BROKER_TO_RESET_OFFSET, ext if queue is None else {**ext, "queueId": queue, "offset": 0}
    )
    to: dict[str, Any] = {"to": "earliest"} if queue is None else {"to": "offset", "value": 0, "queue_id": queue}
    assert doors.http(reset_group, {"topic": topic, **to}, ResetRequest, name=group) == by_remoting


@pytest.mark.parametrize("topic", ["", "T", "nothing"])
@pytest.mark.parametrize("source", ["g", "nobody"])
@pytest.mark.parametrize("to", ["h", "a b"])
def test_a_clone_is_judged_alike(doors: Doors, topic: str, source: str, to: str) -> None:
    assert doors.topic(False, "T")
    assert doors.group(False, "g")
    by_remoting = doors.remoting(Code.CLONE_GROUP_OFFSET, {"srcGroup": source, "destGroup": to, "topic": topic})
    body = {"source": source, "topic": topic or None}
    assert doors.http(clone_group, body, CloneRequest, name=to) == by_remoting


def test_what_is_not_there_is_deleted_by_remoting_and_refused_over_http(doors: Doors) -> None:
    """The one difference: RocketMQ's tools repeat deletions and expect success."""
    for code, ext, handler in (
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "nothing"}, delete_topic),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "nobody"}, delete_group),
    ):
        assert doors.remoting(code, ext)
        assert not doors.http(handler, None, None, name=next(iter(ext.values())))


def test_each_way_leaves_the_same_trace(sim: SimCluster, doors: Doors) -> None:
    """What was deleted, reset or cloned is told with the one who asked, and a topic keeps who changed it."""
    found: dict[bool, list[str]] = {}
    assert propose(sim, Finalize(CHANGES_LEVEL)).outcome is Outcome.OK
    for over_http in (False, True):
        assert doors.topic(over_http, "T")
        assert sim.leader().state.topics["T"].changed_by
        assert doors.group(over_http, "g")
        before = len(sim.leader().running.events.kept())
        for code, ext, handler, body, kind, name in (
            (
                Code.CLONE_GROUP_OFFSET,
                {"srcGroup": "g", "destGroup": "h"},
                clone_group,
                {"source": "g"},
                CloneRequest,
                "h",
            ),
            (
                Code.INVOKE_BROKER_TO_RESET_OFFSET,
                {"group": "g", "topic": "T", "timestamp": -2, "isForce": "true"},
                reset_group,
                {"topic": "T", "to": "earliest"},
                ResetRequest,
                "g",
            ),
            (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"}, delete_group, None, None, "g"),
            (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, delete_topic, None, None, "T"),
        ):
            assert doors.http(handler, body, kind, name=name) if over_http else doors.remoting(code, ext)
        told = [event for event in sim.leader().running.events.kept()[before:] if event.kind == "change"]
        assert all("asked for over" in event.says for event in told)
        found[over_http] = [event.object for event in told]
    assert found[True] == found[False] == ["group h", "group g", "group g", "topic T"]
