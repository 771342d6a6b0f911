"""A cluster with two users: one has things of every kind, the other knows all their names and has no right to them.

`Possessions` are what `make` leaves behind; `ask` sends a request of either user and returns all that its node said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from cluster.broker.access.user_admin import Asker
from cluster.broker.refusal import Refused
from jepsen_like.marks import mark_of, marks_in
from raftmq_wire.codec import FLAG_RESPONSE, decode_header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import (
    BatchItem,
    build_batch,
    decode_message,
    decode_recall_handle,
    encode_message_id,
)
from raftmq_wire.signature import Credentials
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, send_frame

OPERATOR = Asker("operator", "127.0.0.1")
ROOT, VIC, MAL = (Credentials(name, f"{name}-secret") for name in ("root", "vic", "mal"))
RULES = {
    "vic": [[1, "Topic:vic-*", ["All"], [], True], [1, "Group:vic-*", ["All"], [], True]],
    "mal": [[1, "Topic:mal-*", ["All"], [], True], [1, "Group:mal-*", ["All"], [], True]],
}
REPLIES = [1, "Topic:DefaultCluster_REPLY_TOPIC", ["Pub"], [], True]
"""The right of each service that answers requests."""
SHARED = [[1, "Topic:shared-*", ["Sub"], [], True], [1, "Group:shared-*", ["Sub"], [], True]]
CLUSTER_GET = [1, "Cluster:DefaultCluster", ["Get", "List"], [], True]
KEY, PID = "vic-key", b"session of vic.."
ANSWER_S = 25.0


class Said(NamedTuple):
    """One frame that a node wrote to a client."""

    code: int
    is_answer: bool
    opaque: int
    remark: str
    ext: dict[str, str]
    body: bytes


class Path2(ClientPath):
    """A client's connection that keeps everything that comes."""

    def __init__(self, node: SimNode) -> None:
        super().__init__(node)
        self.said: list[Said] = []
        self.next = 0

    def write(self, data: bytes) -> None:
        """Keeps a frame of the node."""
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        is_answer = bool(header.flag & FLAG_RESPONSE)
        self.said.append(
            Said(header.code, is_answer, header.opaque, header.remark or "", ext_of(header), bytes(data[end:]))
        )
        super().write(data)

    def marks(self, since: int = 0) -> list[str]:
        """The topics whose messages came over this connection, in its frames from number `since` on."""
        return sorted({topic for said in self.said[since:] for topic in marks_in(said.body + repr(said.ext).encode())})


def body_of(topic: str) -> bytes:
    """A body with the topic's mark."""
    return b"body " + mark_of(topic)


class TwoUsers:
    """The cluster. `position` and the like name things of the user vic."""

    def __init__(self, sim: SimCluster, node: SimNode) -> None:
        """`node`: the node with the connections of both."""
        self.sim, self.node = sim, node
        self.vic, self.mal = self.connect(), self.connect()
        self.client_id = "vic-client"

    def connect(self) -> Path2:
        """A new connection to the node."""
        path = Path2(self.node)
        self.node.paths.append(path)
        return path

    def ask(
        self, path: Path2, who: Credentials, code: int, ext: dict[str, str], body: bytes = b"", *, limit_s: float = 10
    ) -> Said:
        """Sends a signed request and returns its answer."""
        path.next += 1
        opaque = path.next
        path.ask(encode_frame(code, opaque, 0, ext=who.signed(ext, body), body=body))
        found = lambda: [said for said in path.said if said.is_answer and said.opaque == opaque]  # noqa: E731
        self.sim.loop.run_until(found, limit_s, f"an answer to {code} {ext}")
        (answer,) = found()
        return answer

    def send(self, path: Path2, who: Credentials, topic: str, **more: Any) -> Said:
        """Sends a message with the topic's mark."""
        frame = send_frame(1, topic, b"", **more)
        end = 8 + int.from_bytes(frame[5:8], "big")
        return self.ask(path, who, 310, ext_of(decode_header(frame[4], frame[8:end])), body_of(topic))

    def owns(self) -> None:
        """Gives vic one thing of each kind."""
        vic = self.vic
        # A client: a consumer of two groups and a producer.
        beat = {"clientID": self.client_id, "producerDataSet": [{"groupName": "vic-producers"}], "consumerDataSet": []}
        beat["consumerDataSet"] = [consumer("vic-group", "vic-topic"), consumer("shared-group", "shared-topic")]
        self.ok(vic, VIC, RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        beat = {"clientID": "mal-client", "producerDataSet": [{"groupName": "mal-producers"}], "consumerDataSet": []}
        beat["consumerDataSet"] = [consumer("mal-group", "mal-topic")]
        self.ok(self.mal, MAL, RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        # Messages: in a queue, of a session, waiting, and half.
        self.sent = self.send(vic, VIC, "vic-topic", key=KEY)
        self.send(vic, VIC, "vic-topic", pid=PID, seq=1, low=1)
        later = self.send(vic, VIC, "vic-topic", key="vic-later", properties="TIMER_DELAY_MS\x01600000\x02")
        self.handle = decode_recall_handle(later.ext["recallHandle"])
        half = "TRAN_MSG\x01true\x02PGROUP\x01vic-producers\x02"
        self.half = self.send(vic, VIC, "vic-topic", key="vic-half", properties=half)
        asks = "CORRELATION_ID\x01question\x02REPLY_TO_CLIENT\x01vic-client\x02TTL\x01600000\x02"
        self.send(vic, VIC, "vic-topic", key="vic-question", properties=asks)
        # A message in the retry topic, and one among the dead letters.
        back = {"group": "vic-group", "offset": str(self.position), "originMsgId": "x", "originTopic": "vic-topic"}
        self.ok(vic, VIC, RequestCode.CONSUMER_SEND_MSG_BACK, back | {"delayLevel": "-1"})
        # A write with an attempt.
        opened = self.ok(vic, VIC, RequestCode.OPEN_ATTEMPT, {"name": "vic-write", "write": "1"})
        self.attempt = int(opened.ext["attempt"])
        # A lock.
        self.ok(vic, VIC, RequestCode.LOCK_BATCH_MQ, {}, self.locks(self.client_id))
        self.sim.settle()

    def ok(self, path: Path2, who: Credentials, code: int, ext: dict[str, str], body: bytes = b"") -> Said:
        """A request that must succeed."""
        answer = self.ask(path, who, code, ext, body)
        assert answer.code == 0, answer
        return answer

    @staticmethod
    def locks(client_id: str) -> bytes:
        """The body of requests 41 and 42."""
        queues = [{"topic": "shared-topic", "brokerName": "b", "queueId": 0}]
        return json.dumps({"consumerGroup": "shared-group", "clientId": client_id, "mqSet": queues}).encode()

    @property
    def position(self) -> int:
        """The position of vic's first message."""
        state = self.sim.leader().state
        topic = state.topics["vic-topic"]
        return state.fetch(topic.id, 0, 0, 1)[0].position

    @property
    def host(self) -> Any:
        """The address that message ids contain."""
        leader = self.sim.leader()
        state = leader.state
        item = state.fetch(state.topics["vic-topic"].id, 0, 0, 1)[0]
        return decode_message(leader.log.read_at(item.position, item.size))[0].store_host

    def message_id(self, position: int) -> str:
        """The offsetMsgId of a position."""
        return encode_message_id(self.host, position)

    # --- what must not change ----------------------------------------------------------------------------------------

    def rows(self) -> dict[str, int]:
        """The sums of all rows of the leader, and its applied index."""
        leader = self.sim.leader()
        return {**leader.kv.sums, "applied": leader.state.applied.index}

    def registrations(self) -> list[tuple[str, ...]]:
        """What every node knows of vic's clients, and vic's locks."""
        found: list[tuple[str, ...]] = []
        for node in self.sim.running:
            members = node.running.serving.broker.members
            found += [(str(node.node_id), *map(str, each[:2]), each[2].client_id) for each in members.of(self.vic)]
            locks = node.state.locks_of_group("shared-group")
            found += [(str(node.node_id), str(queue), lock.client_id) for queue, lock in locks.items()]
        return sorted(found)

    def denials(self) -> int:
        """How often all nodes have denied something, or would have."""
        found = (node.running.serving.broker.denials.last_hour() for node in self.sim.running)
        return sum(denial.times for each in found for denial in each)


def consumer(group: str, topic: str) -> dict[str, Any]:
    """A consumer as heartbeats name it."""
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
    }


def slice_body() -> bytes:
    """The body of a slice of one message."""
    return build_batch([BatchItem(0, body_of("mal-topic"), b"")])


def ask_admin(sim: SimCluster, method: str, *arguments: Any, **named: Any) -> None:
    """A change of the operator on the leader."""
    leader = sim.leader()
    told: list[Refused | None] = []
    leader.run(
        lambda: getattr(leader.running.serving.broker.user_admin, method)(OPERATOR, *arguments, told.append, **named)
    )
    sim.loop.run_until(lambda: told, 10, method)
    assert told == [None], told


def make(sim: SimCluster, mode: str, *, follower: bool = False, level: int = LEVEL) -> TwoUsers:
    """Fills a cluster (made with `auth.key_file`) with both users and what one has."""
    sim.propose(sim.leader(), Finalize(level))
    sim.settle()
    for topic in ("vic-topic", "mal-topic", "shared-topic"):
        sim.create_topic(topic, queues=1)
    ask_admin(sim, "create", "root", "root-secret", is_super=True, enabled=True)
    for name, rules in RULES.items():
        ask_admin(sim, "create", name, f"{name}-secret", is_super=False, enabled=True)
        ask_admin(sim, "set_rules", name, [*rules, *SHARED, *([CLUSTER_GET, REPLIES] if name == "mal" else [])])
    ask_admin(sim, "set_mode", mode)
    sim.settle()
    both = TwoUsers(sim, sim.followers()[0] if follower else sim.leader())
    root = both.connect()
    for group in ("vic-group", "mal-group", "shared-group"):
        body = json.dumps({"groupName": group, "retryQueueNums": 1}).encode()
        both.ok(root, ROOT, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    both.owns()
    return both


def key_file(folder: Path) -> Path:
    """A file with the key of users' secrets."""
    path = folder / "auth.key"
    path.write_text("a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=\n")
    path.chmod(0o600)
    return path
