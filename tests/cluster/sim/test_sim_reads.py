"""Every read, sent to the leader and to each node that follows, for things that are there and for ones that are not:
all give the leader's answer. Where the HTTP API has the same read, it says the same.

A code whose fields are topics, queues and groups has its cases by its row; another one must be entered in `own_reads`
or in `NOT_COMPARED`, or the first test fails.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from cluster.admin.errors import ApiError
from cluster.admin.handler_request import AdminHandler, Call
from cluster.admin.handlers.access.rules import get_rules
from cluster.admin.handlers.access.users import list_users
from cluster.admin.handlers.groups import describe_group, list_groups
from cluster.admin.handlers.messages import find_messages, get_message, list_messages
from cluster.admin.handlers.topics import describe_topic, list_topics
from cluster.admin.node_interface import AdminPort
from cluster.admin.streamed_json import Pieces
from cluster.requests.table import ROWS, VERBS
from raftmq_wire.codec import decode_header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode as Code
from raftmq_wire.message_format import decode_messages
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, send_frame
from tests.support.two_users import ROOT, RULES, ask_admin, consumer, key_file

TOPIC, GROUP, KEY = "orders", "billing", "order-1"
MESSAGES = 3
NOWHERE = 10**15
OPAQUE = 1000
"""Numbers of requests from here on are no number of what a node asks its clients."""
TIMES = {"beginTimestamp": "0", "endTimestamp": str(1 << 62), "maxNum": "8"}
ORDER_CONF = "ORDER_TOPIC_CONFIG"

NOT_COMPARED: Mapping[int, str] = {
    Code.GET_BROKER_CONFIG: "each node's own",
    Code.GET_BROKER_RUNTIME_INFO: "each node's own",
    **dict.fromkeys(
        (
            Code.HEART_BEAT,
            Code.UNREGISTER_CLIENT,
            Code.LOCK_BATCH_MQ,
            Code.UNLOCK_BATCH_MQ,
            Code.DELETE_TOPIC_IN_NAMESRV,
        ),
        "it changes something, or seems to, and may be repeated freely",
    ),
    **{verb.code: "it changes something" for verb in ROWS if verb.is_write},
    **{verb.code: "a client answers it" for verb in ROWS if verb.asks_client},
}
"""Code -> the reason why its answers are not compared."""


class Said(NamedTuple):
    """The answer to a request."""

    code: int
    remark: str
    ext: dict[str, str]
    body: bytes


class Read(NamedTuple):
    """One read."""

    code: int
    name: str
    ext: dict[str, str]
    body: bytes = b""


def both(code: int, field: str, there: str, absent: str, **more: str) -> Iterator[Read]:
    yield Read(code, "hit", {field: there, **more})
    yield Read(code, "miss", {field: absent, **more})


PLAIN = {"topic": (TOPIC, "nothing"), "queueId": ("0", "1", "9"), "consumerGroup": (GROUP, "nobody")}
"""Field -> values for what is there and for what is not."""


def reads(state: BrokerState) -> list[Read]:
    """Returns the cases of every code that is compared. One without a case of its own is asked for every combination of
    the fields that its row demands, if all of them are PLAIN."""
    found = list(own_reads(state))
    left = VERBS.keys() - NOT_COMPARED.keys() - {read.code for read in found}
    for code in sorted(left):
        fields = [field.removesuffix("!") for field in VERBS[code].fields.split() if field.endswith("!")]
        if fields and PLAIN.keys() >= set(fields):
            combinations = itertools.product(*[PLAIN[field] for field in fields])
            found += [Read(code, " ".join(each), dict(zip(fields, each, strict=True))) for each in combinations]
    return found


def own_reads(state: BrokerState) -> Iterator[Read]:
    """Yields the cases of codes that have cases of their own."""
    first = state.fetch(state.topics[TOPIC].id, 0, 0, 1)[0].position
    for topic, found in ((TOPIC, "hit"), ("nothing", "no topic")):
        for key in (KEY, "no-key"):
            yield Read(Code.QUERY_MESSAGE, f"{found} {key}", {"topic": topic, "key": key, **TIMES})
        for queue in ("0", "1", "9"):
            where = {"topic": topic, "queueId": queue}
            for time_ms in ("0", str(1 << 50)):
                yield Read(
                    Code.SEARCH_OFFSET_BY_TIMESTAMP, f"{found} {queue} {time_ms}", where | {"timestamp": time_ms}
                )
            for group in (GROUP, "nobody"):
                yield Read(Code.QUERY_CONSUMER_OFFSET, f"{found} {queue} {group}", where | {"consumerGroup": group})
                for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
                    for offset in (0, MESSAGES, 99):
                        yield pull(code, f"{found} {queue} {group} {offset}", group, where, offset)
        for group in (GROUP, "nobody"):
            ext = {"consumerGroup": group, "topic": topic}
            yield Read(Code.GET_CONSUME_STATS, f"{found} {group}", ext)
            wanted = {"topic": topic, "consumerGroup": group, "clientId": "client", "strategyName": "AVG"}
            yield Read(Code.QUERY_ASSIGNMENT, f"{found} {group}", {}, json.dumps(wanted).encode())
    yield from both(Code.VIEW_MESSAGE_BY_ID, "offset", str(first), str(NOWHERE))
    yield Read(Code.VIEW_MESSAGE_BY_ID, "inside", {"offset": str(first + 3)})
    yield from both(Code.GET_ROUTEINFO_BY_TOPIC, "topic", TOPIC, "nothing")
    yield Read(Code.GET_ROUTEINFO_BY_TOPIC, "auto create", {"topic": "TBW102"})
    yield from both(Code.VIEW_BROKER_STATS_DATA, "statsKey", TOPIC, "nothing", statsName="TOPIC_PUT_NUMS")
    yield from both(Code.GET_PRODUCER_CONNECTION_LIST, "producerGroup", "makers", "nobody", topic=TOPIC)
    yield from both(Code.GET_KV_CONFIG, "key", TOPIC, "nothing", namespace=ORDER_CONF)
    yield from both(Code.GET_KVLIST_BY_NAMESPACE, "namespace", ORDER_CONF, "another")
    yield from both(Code.GET_TOPICS_BY_CLUSTER, "cluster", "DefaultCluster", "another")
    everything = (
        Code.GET_BROKER_CLUSTER_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    )
    yield from (Read(code, "all", {}) for code in everything)
    for expression, name in (("a > 1", "valid"), ("a >", "invalid")):
        data = {"topic": TOPIC, "subString": expression, "expressionType": "SQL92"}
        body = json.dumps({"clientId": "client", "group": GROUP, "subscriptionData": data}).encode()
        yield Read(Code.CHECK_CLIENT_CONFIG, name, {}, body)
    yield from both(Code.AUTH_GET_USER, "username", "root", "nobody")
    yield from both(Code.AUTH_LIST_USER, "filter", "", "nobody")
    yield from both(Code.AUTH_GET_ACL, "subject", "User:vic", "User:nobody")
    yield from both(Code.AUTH_LIST_ACL, "subjectFilter", "", "nobody")
    for position, name in ((first, "hit"), (NOWHERE, "miss")):
        yield Read(Code.ENTRIES_AT, name, {}, struct.pack(">Q", position))


def may_lag(read: Read, right: Said) -> bool:
    """True for a pull beyond the end of a queue: a follower that lags cannot know whether the offset is wrong, and
    lets the pull wait as if the message had not arrived yet."""
    return read.code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE) and right.code == 21


def pull(code: int, name: str, group: str, where: Mapping[str, str], offset: int) -> Read:
    """A pull that does not wait."""
    ext = {**where, "consumerGroup": group, "queueOffset": str(offset), "maxMsgNums": "8", "sysFlag": "4"}
    ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1"}
    return Read(code, name, {**ext, "expressionType": "TAG"})


def ask(path: ClientPath, read: Read, sim: SimCluster) -> Said:
    """Sends the read, signed by a Super, and returns its answer."""
    before = len(path.written)
    ext = ROOT.signed(read.ext, read.body)
    path.ask(encode_frame(read.code, OPAQUE + before, 0, ext=ext, body=read.body, language="JAVA", version=477))

    def found() -> list[Said]:
        return [said for opaque, said in map(decoded, path.written[before:]) if opaque == OPAQUE + before]

    sim.loop.run_until(found, 20, f"an answer to {read}")
    (answer,) = found()
    return answer


def decoded(data: bytes) -> tuple[int, Said]:
    """Opaque number and contents of an answer."""
    end = 8 + int.from_bytes(data[5:8], "big")
    header = decode_header(data[4], data[8:end])
    return header.opaque, Said(header.code, header.remark or "", ext_of(header), bytes(data[end:]))


OF_FOLLOWER = ("raftmqServedBy", "raftmqAppliedIndex", "raftmqStalenessMs")
"""Fields that only a follower's answer to a pull has."""


def comparable(said: Said) -> Said:
    """The answer without what names the node that gave it."""
    ext = {name: value for name, value in said.ext.items() if name not in OF_FOLLOWER}
    return said._replace(ext=ext, remark=re.sub(r"\bnode \d\b", "node N", said.remark))


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimCluster]:
    overrides: dict[str, Any] = {"auth.key_file": str(key_file(tmp_path_factory.mktemp("auth")))}
    with SimCluster(71, **overrides) as made:
        made.propose(made.leader(), Finalize(LEVEL))
        made.settle()
        ask_admin(made, "create", "root", "root-secret", is_super=True, enabled=True)
        ask_admin(made, "create", "vic", "vic-secret", is_super=False, enabled=True)
        ask_admin(made, "set_rules", "vic", RULES["vic"])
        made.create_topic(TOPIC, queues=2, order=True)
        leader = made.leader()
        path = leader.connect()
        for number in range(1, MESSAGES + 1):
            path.ask(send_frame(number, TOPIC, b"body", key=f"id-{number}", properties=f"KEYS\x01{KEY}\x02"))
        made.loop.run_until(lambda: len(path.replies) == MESSAGES, 10, "the sends")
        beat = {"clientID": "client", "producerDataSet": [{"groupName": "makers"}]}
        body = json.dumps({**beat, "consumerDataSet": [consumer(GROUP, TOPIC)]}).encode()
        for node in made.running:  # a client's heartbeats go to every node that its route names
            said = ask(node.connect(), Read(Code.HEART_BEAT, "", {}, body), made)
            assert said.code == 0, said
        commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
        assert ask(path, Read(Code.UPDATE_CONSUMER_OFFSET, "", commit), made).code == 0
        made.settle()
        yield made


def test_every_served_code_is_compared_or_has_a_reason(sim: SimCluster) -> None:
    compared = {read.code for read in reads(sim.leader().state)}
    assert compared.isdisjoint(NOT_COMPARED)
    assert compared | NOT_COMPARED.keys() == VERBS.keys()


def test_every_node_gives_the_answer_of_the_leader(sim: SimCluster) -> None:
    wrong = []
    for read in reads(sim.leader().state):
        right = comparable(ask(sim.leader().connect(), read, sim))
        for node in sim.followers():
            said = comparable(ask(node.connect(), read, sim))
            if may_lag(read, right):
                assert said.code == 19, said
            elif said != right:
                wrong.append(f"{Code(read.code).name} {read.name}: node {node.node_id} {said}, the leader {right}")
    assert wrong == []


# --- the same over HTTP ---------------------------------------------------------------------------------------------


class Doors:
    """Both ways to ask one node. Each method returns a read's result in a form that both ways have; None if there is no
    such thing."""

    def __init__(self, sim: SimCluster, node: SimNode) -> None:
        self._sim, self._node, self._path = sim, node, node.connect()
        self._port: AdminPort | None = None

    def http(self, handler: AdminHandler, query: Mapping[str, str] = {}, **params: str) -> Any:
        """Returns the answer to a GET."""

        async def answer() -> Any:
            if self._port is None:
                self._port = self._node.running.admin_port()
            watch: Any = SimpleNamespace(groups=SimpleNamespace(committed_age_ms=lambda *_: None))
            try:
                found = await handler(Call(self._port, watch, params, None, "local", query, owner=self))
            except ApiError as error:
                if error.code != "not_found":
                    raise
                return None
            assert isinstance(found, Pieces)
            return json.loads(b"".join(found.parts))

        task = self._node.run(lambda: self._sim.loop.create_task(answer()))
        self._sim.loop.run_until(task.done, 10, f"an answer over HTTP to {handler.__name__}")
        return task.result()

    def remoting(self, code: int, **ext: str) -> Said:
        """Returns the answer to a request."""
        return ask(self._path, Read(code, "", ext), self._sim)


def by_key(topic: str, key: str, doors: Doors) -> tuple[Any, Any]:
    said = doors.remoting(Code.QUERY_MESSAGE, topic=topic, key=key, **TIMES)
    found = [] if said.code == 22 else None if said.code == 17 else positions(said)
    shown = doors.http(find_messages, name=topic, key=key)
    return found, shown and [each["position"] for each in shown["messages"]]


def by_position(position: int, doors: Doors) -> tuple[Any, Any]:
    said = doors.remoting(Code.VIEW_MESSAGE_BY_ID, offset=str(position))
    shown = doors.http(get_message, position=str(position))
    return (None if said.code == 1 else positions(said)), shown and [shown["message"]["position"]]


def positions(said: Said) -> list[int]:
    assert said.code == 0, said
    return [message.position for message in decode_messages(said.body)]


def bounds(topic: str, doors: Doors) -> tuple[Any, Any]:
    def bound(code: int, queue: int) -> int | None:
        said = doors.remoting(code, topic=topic, queueId=str(queue))
        assert said.code in (0, 17), said
        return int(said.ext["offset"]) if said.code == 0 else None

    found = [tuple(bound(code, queue) for code in (Code.GET_MIN_OFFSET, Code.GET_MAX_OFFSET)) for queue in (0, 1)]
    shown = doors.http(describe_topic, name=topic)
    queues = shown and [(each["min_offset"], each["max_offset"]) for each in shown["queues"]]
    return (None if found == [(None, None)] * 2 else found), queues


def by_time(topic: str, time_ms: int, doors: Doors) -> tuple[Any, Any]:
    said = doors.remoting(Code.SEARCH_OFFSET_BY_TIMESTAMP, topic=topic, queueId="0", timestamp=str(time_ms))
    shown = doors.http(list_messages, {"time_ms": str(time_ms)}, name=topic, queue="0")
    first = shown and (shown["messages"][0]["queue_offset"] if shown["messages"] else shown["next_offset"])
    return (None if said.code == 17 else int(said.ext["offset"])), first


def config(topic: str, doors: Doors) -> tuple[Any, Any]:
    said, shown = doors.remoting(Code.GET_TOPIC_CONFIG, topic=topic), doors.http(describe_topic, name=topic)
    if said.code == 17:
        return None, shown
    stored = json.loads(said.body)
    fields = ("readQueueNums", "writeQueueNums", "perm", "order")
    return (
        [stored[field] for field in fields],
        [shown["topic"][field] for field in ("read_queues", "write_queues", "perm", "order")],
    )


def progress(group: str, doors: Doors) -> tuple[Any, Any]:
    """The end of each queue, and the offset that the group has committed."""
    said, shown = doors.remoting(Code.GET_CONSUME_STATS, consumerGroup=group), doors.http(describe_group, name=group)
    if said.code != 0:
        assert said.code == 26, said
        return None, shown
    pairs = re.findall(rb'"brokerOffset":(\d+),"consumerOffset":(\d+)', said.body)
    queues = [(each["max_offset"], each["committed_offset"] or 0) for each in shown["offsets"]]
    return sorted((int(end), int(at)) for end, at in pairs), sorted(queues)


def clients(group: str, doors: Doors) -> tuple[Any, Any]:
    said = doors.remoting(Code.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    shown = doors.http(describe_group, name=group)
    found = re.findall(r'"clientId":"([^"]+)"', said.body.decode())
    return (found if said.code == 0 else None), shown and [each["client_id"] for each in shown["members"]]


def all_groups(doors: Doors) -> tuple[Any, Any]:
    said = json.loads(doors.remoting(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    return sorted(said["subscriptionGroupTable"]), [each["name"] for each in doors.http(list_groups)["groups"]]


def all_topics(doors: Doors) -> tuple[Any, Any]:
    said = json.loads(doors.remoting(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
    return sorted(said["topicList"]), [each["name"] for each in doors.http(list_topics)["topics"]]


def all_users(doors: Doors) -> tuple[Any, Any]:
    said = json.loads(doors.remoting(Code.AUTH_LIST_USER).body)
    return sorted(user["username"] for user in said), [user["name"] for user in doors.http(list_users)["users"]]


def rules_of(user: str, doors: Doors) -> tuple[Any, Any]:
    said, shown = doors.remoting(Code.AUTH_GET_ACL, subject=f"User:{user}"), doors.http(get_rules, user=user)
    assert said.code == 0, said
    stored = json.loads(said.body) if said.body else None
    found = [entry["resource"] for policy in stored["policies"] for entry in policy["entries"]] if stored else []
    return sorted(found), sorted(rule["resource"] for rule in shown["rules"]) if shown else []


def twice(position: int) -> Iterator[Callable[[Doors], tuple[Any, Any]]]:
    """Yields every read that exists in both ways, for what is there and for what is not."""
    for topic in (TOPIC, "nothing"):
        yield from (partial(by_key, topic, key) for key in (KEY, "id-2", "no-key"))
        yield from (partial(by_time, topic, time_ms) for time_ms in (0, 1 << 50))
        yield from (partial(each, topic) for each in (bounds, config))
    yield from (partial(by_position, at) for at in (position, position + 3, NOWHERE))
    yield from (partial(each, group) for each in (progress, clients) for group in (GROUP, "nobody"))
    yield from (partial(rules_of, user) for user in ("root", "vic", "nobody"))
    yield from (all_groups, all_topics, all_users)


def test_http_says_what_remoting_says_on_every_node(sim: SimCluster) -> None:
    state = sim.leader().state
    position = state.fetch(state.topics[TOPIC].id, 0, 0, 1)[0].position
    wrong = []
    for node in sim.running:
        doors = Doors(sim, node)
        for read in twice(position):
            found, shown = read(doors)
            if found != shown:
                wrong.append(f"node {node.node_id}, {read}: remoting {found}, HTTP {shown}")
    assert wrong == []
