"""A scripted cluster: asyncio servers that speak the protocol over one shared, in-memory log.

By default it does what a healthy cluster does, recognising re-sent identities. A test scripts what happens to sends
(`FakeNode.steps`, one per send that arrives) and reads back what arrived (`sends`) and what is stored (`queues`).
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from raftmq.client.loop_thread import LoopThread
from raftmq_wire.codec import FLAG_RESPONSE, decode_header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.topic_identity import IDENTITY_FIELD, TopicIdentity
from tests.support.message_bytes import split_batch
from tests.support.patient_loop import PatientLoop
from tests.support.plain_server import listens

__all__ = ["listens"]


CLUSTER = "0d5e4a1c-1111-4222-8333-444455556666"
_OF_A_QUEUE = (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
_OF_A_TOPIC = (*_OF_A_QUEUE, RequestCode.UPDATE_CONSUMER_OFFSET)


class Step(NamedTuple):
    """The fate of one send: stored or not, answered (None: never) or not, the connection closed or not."""

    store: bool = True
    code: int | None = 0
    remark: str | None = None
    close: bool = False


class Arrived(NamedTuple):
    """A send as it came in."""

    node: int
    code: int
    opaque: int
    ext: dict[str, str]
    body: bytes

    @property
    def sequence(self) -> int:
        return int(self.ext["raftmqSeq"])

    @property
    def identity(self) -> tuple[str, str]:
        return self.ext["raftmqPid"], self.ext["raftmqSeq"]


class Stored(NamedTuple):
    body: bytes
    properties: str
    born_ms: int
    sys_flag: int = 0


def stored_form(topic: str, queue_id: int, offset: int, message: Stored, begins: int = 0) -> bytes:
    """A version 1 message at position begins + offset * 1000 + queue_id."""
    name, properties, body = topic.encode(), message.properties.encode(), message.body
    total = 91 + len(body) + len(name) + len(properties)
    head = struct.pack(
        ">iIIiiqqiq",
        total,
        0xDAA320A7,
        zlib.crc32(body) & 0x7FFFFFFF,
        queue_id,
        0,
        offset,
        begins + offset * 1000 + queue_id,
        message.sys_flag,
        message.born_ms,
    )
    host = b"\x7f\0\0\1" + struct.pack(">i", 10911)
    tail = struct.pack(">iqi", 0, 0, len(body))
    return b"".join(
        (
            head,
            host,
            struct.pack(">q", message.born_ms + 1),
            host,
            tail,
            body,
            bytes((len(name),)),
            name,
            struct.pack(">H", len(properties)),
            properties,
        )
    )


class FakeCluster:
    """Shared state of the nodes. `leader` is the index of the node that leads, None if nobody does."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = [FakeNode(self, n) for n in range(nodes)]
        self.leader: int | None = 0
        self.queues: dict[str, list[list[Stored]]] = {}
        self.ids: dict[str, TopicIdentity] = {}
        """The identity of each topic; a test that clears it has nodes that tell none."""
        self.begins: dict[str, int] = {}
        """Topic -> the position in the log at which it was created."""
        self.min_offsets: dict[tuple[str, int], int] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, FakeConnection]] = {}
        self.wishes: dict[str, list[str]] | None = None
        """Client -> the topics of its last heartbeat, of clients that can divide by topic; None: nobody is told."""
        self.sessions: dict[tuple[str, str], tuple[int, int, str]] = {}
        self.sends: list[Arrived] = []
        self.commits: list[tuple[str, int, int]] = []
        self.created = 0
        self.auto_create = True
        self.other_groups: list[tuple[str, dict[str, str]]] = []
        """(broker name, addresses by id) of further groups that every server names."""
        self.deleted: list[str] = []
        self.locks: dict[tuple[str, str, int], str] = {}
        """(group, topic, queue) -> the client that holds it; locks do not expire here."""
        self.lock_requests: list[tuple[int, str, tuple[int, ...]]] = []
        """(code, client, queues)."""
        self.handlers: dict[int, Callable[[FakeConnection, int, dict[str, str], bytes], None]] = {}
        """A test's own answers: code -> (connection, opaque, ext, body)."""
        self.producers: dict[str, dict[str, FakeConnection]] = {}
        """Producer group -> client -> the connection of its last heartbeat."""
        self.grew = asyncio.Event()
        self.named = list(self.nodes)
        """The nodes that are members now."""

    async def start(self) -> FakeCluster:
        self.loop = asyncio.get_running_loop()
        for node in self.nodes:
            await node.start()
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    @property
    def servers(self) -> str:
        return ";".join(node.address for node in self.nodes)

    def create(self, topic: str, queues: int = 4) -> None:
        self.created += 1
        self.queues[topic] = [[] for _ in range(queues)]
        self.ids[topic] = TopicIdentity(CLUSTER, 0, self.created)
        self.begins[topic] = self.begins[topic] + 1_000_000 if topic in self.begins else 0

    def delete(self, topic: str) -> None:
        """Deletes a topic and what is committed there; pulls that wait are refused."""
        del self.queues[topic]
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[1] != topic}
        self.grew.set()

    def counted(self, topic: str) -> dict[str, str]:
        return {IDENTITY_FIELD: str(self.ids[topic])} if topic in self.ids else {}

    def is_gone(self, ext: dict[str, str]) -> bool:
        """True if a request names an offset in a topic that is gone."""
        topic = ext["topic"]
        if topic not in self.queues:
            return True
        kept = ext.get(IDENTITY_FIELD)
        return kept is not None and topic in self.ids and kept != str(self.ids[topic])

    def fill(self, topic: str, queue_id: int, bodies: list[bytes], tag: str = "") -> None:
        for body in bodies:
            count = sum(map(len, self.queues[topic]))
            properties = f"UNIQ_KEY\x01{count:032X}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
            self.queues[topic][queue_id].append(Stored(body, properties, 1_700_000_000_000 + count))
        self.grew.set()

    def store(self, arrived: Arrived) -> tuple[int, int, str]:
        """(queue id, first offset, offsetMsgIds); once per identity."""
        known = self.sessions.get(arrived.identity)
        if known is not None:
            return known
        topic, ext = arrived.ext["b"], arrived.ext
        queue_id = int(ext["e"])
        queue = self.queues[topic][queue_id]
        items = [(arrived.body, ext["i"])]
        if ext["m"] == "true":
            items = [(item.body, item.properties.decode()) for item in split_batch(arrived.body)]
        first = len(queue)
        for body, properties in items:
            queue.append(Stored(body, properties, int(ext["g"])))
        ids = ",".join(f"7F00000100002A9F{o * 1000 + queue_id:016X}" for o in range(first, len(queue)))
        self.sessions[arrived.identity] = queue_id, first, ids
        self.grew.set()
        return self.sessions[arrived.identity]

    def bodies(self, topic: str) -> list[bytes]:
        return [m.body for queue in self.queues[topic] for m in queue]

    def lock(self, code: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Locks or unlocks; what the client holds of it afterwards."""
        client, held = body["clientId"], []
        self.lock_requests.append((code, client, tuple(queue["queueId"] for queue in body["mqSet"])))
        for queue in body["mqSet"]:
            key = body["consumerGroup"], queue["topic"], queue["queueId"]
            if code == RequestCode.UNLOCK_BATCH_MQ:
                if self.locks.get(key) == client:
                    del self.locks[key]
            elif self.locks.setdefault(key, client) == client:
                held.append(queue)
        return held

    def notify(self, group: str) -> None:
        for connection in self.members.get(group, {}).values():
            connection.ask(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


class FakeNode:
    """One server. `names_leader` overrides whom it names, `tells_nothing` is why it names none; `mute` makes it accept
    and never answer."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.steps: deque[Step] = deque()
        self.on_send: Callable[[Arrived], Step | None] = lambda _: None
        self.overrides: dict[int, deque[tuple[int, str | None, dict[str, str], bytes]]] = {}
        self.names_leader: int | None = -1
        self.tells_nothing = ""
        self.clusters = ""
        """The clusters that it says it belongs to."""
        self.mute = False
        self.calls: list[int] = []
        self.connections: set[FakeConnection] = set()
        self.address = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        port = int(self.address.rpartition(":")[2] or 0)
        self._server = await loop.create_server(lambda: FakeConnection(self), "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def kill(self) -> None:
        """Ends like kill -9: no longer listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.transport.abort()


class FakeConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.rest = b""
        self.asked = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.node.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.connections.discard(self)
        for group, members in self.node.cluster.members.items():
            for client_id in [c for c, connection in members.items() if connection is self]:
                del members[client_id]
                self.node.cluster.notify(group)

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while len(self.rest) >= 8:
            length, word = struct.unpack_from(">ii", self.rest)
            if len(self.rest) < 4 + length:
                return
            frame, self.rest = self.rest[4 : 4 + length], self.rest[4 + length :]
            size = word & 0xFFFFFF
            header = decode_header(word >> 24, frame[4 : 4 + size])
            self.handle(header.code, header.opaque, header.flag, ext_of(header), frame[4 + size :])

    def reply(
        self,
        opaque: int,
        code: int = 0,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None:
        if not self.transport.is_closing():
            self.transport.write(encode_frame(code, opaque, FLAG_RESPONSE, ext=ext, body=body, remark=remark))

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.asked += 1
        self.transport.write(encode_frame(code, self.asked, 2, ext=ext, body=body))

    def handle(self, code: int, opaque: int, flag: int, ext: dict[str, str], body: bytes) -> None:
        node, cluster = self.node, self.node.cluster
        node.calls.append(code)
        if node.mute:
            if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                cluster.sends.append(Arrived(node.number, code, opaque, ext, body))
            return
        override = node.overrides.get(code)
        if override:
            status, remark, fields, content = override.popleft()
            self.reply(opaque, status, fields, content, remark)
            return
        if code in cluster.handlers:
            cluster.handlers[code](self, opaque, ext, body)
        elif code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.on_send(Arrived(node.number, code, opaque, ext, body))
        elif code == RequestCode.PULL_MESSAGE:
            self.on_pull(opaque, ext, int(ext["suspendTimeoutMillis"]) if int(ext["sysFlag"]) & 2 else 0)
        else:
            self.on_other(code, opaque, ext, body)

    def on_send(self, arrived: Arrived) -> None:
        node, cluster = self.node, self.node.cluster
        cluster.sends.append(arrived)
        step = node.on_send(arrived) or (node.steps.popleft() if node.steps else Step())
        topic = arrived.ext["b"]
        if step.store and topic not in cluster.queues:
            if not cluster.auto_create:
                self.reply(arrived.opaque, 17, remark="no such topic")
                return
            cluster.create(topic, int(arrived.ext["d"]))
        result = cluster.store(arrived) if step.store else None
        if step.close:
            self.transport.abort()
        elif step.code is not None:
            fields = {}
            if result is not None and step.code in (0, 10, 11, 12):
                fields = {"queueId": str(result[0]), "queueOffset": str(result[1]), "msgId": result[2]}
            self.reply(arrived.opaque, step.code, fields, remark=step.remark)

    def on_pull(self, opaque: int, ext: dict[str, str], suspend_ms: int) -> None:
        cluster = self.node.cluster
        topic, queue_id, offset = ext["topic"], int(ext["queueId"]), int(ext["queueOffset"])
        if cluster.is_gone(ext):
            self.reply(opaque, 17, remark="no such topic")
            return
        if queue_id >= len(cluster.queues[topic]):
            self.reply(opaque, 29, remark=f"topic {topic} has no read queue {queue_id}")
            return
        queue = cluster.queues[topic][queue_id]
        low, high = cluster.min_offsets.get((topic, queue_id), 0), len(queue)
        fields = {"minOffset": str(low), "maxOffset": str(high), "suggestWhichBrokerId": "0"}
        if offset < low or offset > high:
            self.reply(opaque, 21, {**fields, "nextBeginOffset": str(low if offset < low else high)})
        elif offset < high:
            stop = min(high, offset + min(8, int(ext["maxMsgNums"])))
            wanted = [t.strip() for t in ext["subscription"].split("||")]
            found = [
                stored_form(topic, queue_id, o, queue[o], cluster.begins[topic])
                for o in range(offset, stop)
                if ext["subscription"] == "*" or any(f"TAGS\x01{t}\x02" in queue[o].properties for t in wanted)
            ]
            self.reply(opaque, 0 if found else 20, {**fields, "nextBeginOffset": str(stop)}, b"".join(found))
        elif suspend_ms:
            task = asyncio.ensure_future(self.park(opaque, ext))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
        else:
            self.reply(opaque, 19, {**fields, "nextBeginOffset": str(offset)})

    async def park(self, opaque: int, ext: dict[str, str]) -> None:
        cluster = self.node.cluster
        queue = cluster.queues[ext["topic"]][int(ext["queueId"])]
        while len(queue) <= int(ext["queueOffset"]) and not self.transport.is_closing() and not cluster.is_gone(ext):
            cluster.grew.clear()
            await cluster.grew.wait()
        self.on_pull(opaque, ext, 0)

    def on_other(self, code: int, opaque: int, ext: dict[str, str], body: bytes) -> None:
        node, cluster = self.node, self.node.cluster
        topic, queue_id = ext.get("topic", ""), int(ext.get("queueId", 0))
        if code == RequestCode.GET_BROKER_CLUSTER_INFO and node.tells_nothing:
            self.reply(opaque, 14, remark=node.tells_nothing)
        elif code == RequestCode.GET_BROKER_CLUSTER_INFO:
            leader = cluster.leader if node.names_leader == -1 else node.names_leader
            addresses = {str(n.number + 1): n.address for n in cluster.named if n.number != leader}
            if leader is not None:
                addresses["0"] = cluster.nodes[leader].address
            data = {"brokerName": "raft", "brokerAddrs": addresses, "cluster": "c"}
            ext = {"raftmqClusters": node.clusters} if node.clusters else {}
            if cluster.other_groups:
                numbers = ["1/raft", *(f"{at}/{name}" for at, (name, _) in enumerate(cluster.other_groups, 2))]
                ext["raftmqGroups"] = " ".join(numbers)
            table = {"raft": data} | {
                name: {"brokerName": name, "brokerAddrs": at} for name, at in cluster.other_groups
            }
            self.reply(opaque, ext=ext, body=json.dumps({"brokerAddrTable": dict(sorted(table.items()))}).encode())
        elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if topic not in cluster.queues and not (topic == "TBW102" and cluster.auto_create):
                self.reply(opaque, 17, remark="no such topic")
                return
            queues = len(cluster.queues.get(topic, range(8)))
            rows = [{"brokerName": "raft", "perm": 4, "readQueueNums": queues, "writeQueueNums": queues}]
            for n in cluster.nodes:
                name = f"raft-{n.number + 1}"
                rows.append({"brokerName": name, "perm": 2, "readQueueNums": 0, "writeQueueNums": queues})
            self.reply(opaque, body=json.dumps({"brokerDatas": [], "queueDatas": rows}).encode())
        elif code == RequestCode.HEART_BEAT:
            beat = json.loads(body)
            for producer in beat["producerDataSet"]:
                cluster.producers.setdefault(producer["groupName"], {})[beat["clientID"]] = self
            for consumer in beat["consumerDataSet"]:
                members = cluster.members.setdefault(consumer["groupName"], {})
                new = beat["clientID"] not in members
                members[beat["clientID"]] = self
                if cluster.wishes is not None and consumer["raftmqByTopic"]:
                    wanted = [each["topic"] for each in consumer["subscriptionDataSet"]]
                    cluster.wishes[beat["clientID"]] = wanted
                if new:
                    cluster.notify(consumer["groupName"])
            self.reply(opaque)
        elif code == RequestCode.UNREGISTER_CLIENT:
            cluster.producers.get(ext["producerGroup"], {}).pop(ext["clientID"], None)
            if cluster.members.get(ext["consumerGroup"], {}).pop(ext["clientID"], None) is not None:
                cluster.notify(ext["consumerGroup"])
            self.reply(opaque)
        elif code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            ids = list(cluster.members.get(ext["consumerGroup"], ()))
            told: dict[str, Any] = {"consumerIdList": ids}
            if cluster.wishes is not None and cluster.wishes.keys() >= set(ids):
                told |= {"raftmqWishes": [cluster.wishes[each] for each in ids], "raftmqWishOf": [*range(len(ids))]}
            self.reply(opaque, 0 if ids else 1, body=json.dumps(told).encode())
        elif code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            self.reply(opaque, body=json.dumps({"lockOKMQSet": cluster.lock(code, json.loads(body))}).encode())
        elif code in _OF_A_TOPIC and cluster.is_gone(ext):
            self.reply(opaque, 17, remark="no such topic")
        elif code in _OF_A_QUEUE and queue_id >= len(cluster.queues[topic]):
            self.reply(opaque, 29, remark="no such queue")
        elif code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            low = cluster.min_offsets.get((topic, queue_id), 0)
            high = len(cluster.queues[topic][queue_id])
            found = high if code == RequestCode.GET_MAX_OFFSET else low
            self.reply(opaque, ext={"offset": str(found), **cluster.counted(topic)})
        elif code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            queue, at = cluster.queues[topic][queue_id], int(ext["timestamp"])
            found = next((o for o, m in enumerate(queue) if m.born_ms + 1 >= at), len(queue))
            self.reply(opaque, ext={"offset": str(found), **cluster.counted(topic)})
        elif code == RequestCode.QUERY_CONSUMER_OFFSET:
            offset = cluster.offsets.get((ext["consumerGroup"], topic, queue_id))
            told = {} if offset is None else {"offset": str(offset), **cluster.counted(topic)}
            self.reply(opaque, 22 if offset is None else 0, told)
        elif code == RequestCode.UPDATE_CONSUMER_OFFSET:
            cluster.offsets[ext["consumerGroup"], topic, queue_id] = int(ext["commitOffset"])
            cluster.commits.append((ext["consumerGroup"], queue_id, int(ext["commitOffset"])))
            self.reply(opaque)
        elif code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            cluster.create(topic, int(ext["writeQueueNums"]))
            self.reply(opaque)
        elif code == RequestCode.DELETE_TOPIC_IN_BROKER:
            cluster.delete(topic)
            self.reply(opaque)
        elif code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            self.reply(opaque, body=json.dumps({"topicList": list(cluster.queues)}).encode())
        elif code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            table = {"subscriptionGroupTable": {g: {"groupName": g} for g in cluster.members}}
            self.reply(opaque, body=json.dumps(table).encode())
        else:
            self.reply(opaque, 3, remark=f"request type {code} not supported")


async def until(met: Callable[[], bool]) -> None:
    """Lets the loop run until `met`; the test's own timeout is the limit."""
    while not met():
        await asyncio.sleep(0.005)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], Any]:
    """Waits for a condition, not for a time."""
    return until


def pytest_asyncio_loop_factories() -> dict[str, type[PatientLoop]]:
    """Client and cluster share a loop here: how busy the machine is changes no outcome."""
    return {"patient": PatientLoop}


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    """Three nodes on the test's own loop."""
    cluster = await FakeCluster().start()
    yield cluster
    cluster.stop()


@pytest.fixture
def fake_in_thread() -> Iterator[FakeCluster]:
    """Three nodes on a loop of their own, for the blocking client."""
    thread = LoopThread()

    async def make() -> FakeCluster:
        return await FakeCluster().start()

    async def stop() -> None:
        cluster.stop()

    cluster = thread.run(make())
    yield cluster
    thread.run(stop())
    thread.close()


@pytest.fixture
def step() -> type[Step]:
    """The type of a send's fate."""
    return Step


@pytest.fixture
def stored() -> Callable[[str, int, int, Stored], bytes]:
    """Bytes of a stored message."""
    return stored_form


@pytest.fixture
def stored_message() -> type[Stored]:
    """A stored message's variable parts."""
    return Stored
