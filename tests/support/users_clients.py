"""Clients of users on simulated nodes: heartbeats, requests that want a reply, replies, locks.

Their requests are signed. A request of the node is recorded and answered with success.
"""

from __future__ import annotations

import itertools
import json

from raftmq_wire.codec import FLAG_ONEWAY, FLAG_RESPONSE, decode_header, encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming.groups import PutGroup
from statemachine.levels import OWNERS_LEVEL
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode
from tests.support.sim_users import ask_admin, begin, settle

REPLIES = "DefaultCluster_REPLY_TOPIC"
ANN, BOB, EVE, REPLIER = (Credentials(name, f"{name}-secret") for name in ("ann", "bob", "eve", "replier"))
RULES = {
    "ann": ["Topic:T", "Group:g", "Group:h"],
    "bob": ["Topic:T", "Group:g", "Group:h"],
    "eve": ["Topic:S", f"Topic:{REPLIES}"],
    "replier": [f"Topic:{REPLIES}"],
}
"""User -> where it may send and read. eve's topic S is her own; she may reply, as every service may."""


def with_users(sim: SimCluster, mode: str = "enforce", level: int = OWNERS_LEVEL) -> None:
    """The users of RULES, known everywhere. `mode` "" creates none."""
    sim.create_topic("S")
    sim.propose(sim.leader(), Finalize(level), *(PutGroup({"name": group}, True) for group in "gh"))
    sim.loop.run_until(lambda: all(node.state.level == level for node in sim.running), 10, "the level")
    if mode:
        begin(sim, mode)
        for name, places in RULES.items():
            rules = [[1, place, ["Pub", "Sub"], [], True] for place in places]
            assert ask_admin(sim, "create", name, f"{name}-secret", is_super=False, enabled=True) is None
            assert ask_admin(sim, "set_rules", name, rules) is None
        settle(sim)


def id_of(sim: SimCluster, who: Credentials) -> int:
    """The id of a user."""
    return sim.leader().state.access.users[who.access_key].id


class UsersClient(ClientPath):
    """One connection of a client of a user; `who` None: it signs nothing."""

    def __init__(self, sim: SimCluster, node: SimNode, who: Credentials | None, client_id: str) -> None:
        super().__init__(node)
        self.sim, self.who, self.client_id = sim, who, client_id
        self.asked: list[tuple[int, dict[str, str], bytes]] = []
        """Requests of the node: code, ext fields, body."""
        self._bodies: dict[int, bytes] = {}
        self._opaques = itertools.count(1)
        node.paths.append(self)

    def write(self, data: bytes) -> None:
        end = 8 + int.from_bytes(data[5:8], "big")
        header = decode_header(data[4], data[8:end])
        if header.flag & FLAG_RESPONSE:
            super().write(data)
            self._bodies[header.opaque] = data[end:]
            return
        if header.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return
        self.asked.append((header.code, json.loads(bytes(header.extFields)), data[end:]))
        if not header.flag & FLAG_ONEWAY:
            self.node.loop.call_soon(self._confirm, header.opaque)

    def _confirm(self, opaque: int) -> None:
        assert self.calls is not None
        frame = encode_frame(0, opaque, FLAG_RESPONSE)
        self.node.run(self.calls.on_response, decode_header(0, frame[8:]), b"")

    def close(self) -> None:
        super().close()
        for callback in list(self.on_close):
            self.node.run(callback)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the replies that were pushed to it."""
        return [body for code, _, body in self.asked if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]

    def begin(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        """Sends a request and returns its opaque."""
        opaque = next(self._opaques)
        signed = ext if self.who is None else self.who.signed(ext, body)
        self.ask(encode_frame(code, opaque, 0, ext=signed, body=body))
        return opaque

    def answer(self, opaque: int) -> tuple[int, str]:
        """Waits for the answer; returns code and remark."""
        self.sim.loop.run_until(lambda: self.replies.get(opaque), 15, f"an answer to {opaque}")
        return self.replies[opaque][0][:2]

    def request(self, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[int, str]:
        """Sends a request and waits for its code and remark."""
        return self.answer(self.begin(code, ext, body))

    def beat(self, producers: tuple[str, ...] = ("PG",), consumers: tuple[str, ...] = ()) -> tuple[int, str]:
        """A heartbeat as a producer and consumer of these groups."""
        data = {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": group} for group in producers],
            "consumerDataSet": [
                {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}]}
                for group in consumers
            ],
        }
        return self.request(RequestCode.HEART_BEAT, {}, json.dumps(data).encode())

    def wants_reply(self, correlation_id: str, ttl_ms: int = 60_000, topic: str = "T") -> tuple[int, str]:
        """A send that wants a reply."""
        return self.request(RequestCode.SEND_MESSAGE_V2, self._send(topic, correlation_id, ttl_ms), b"the question")

    def reply(
        self, to: str, correlation_id: str, body: bytes, ttl_ms: int = 60_000, topic: str = REPLIES
    ) -> tuple[int, str]:
        """A reply to a client id."""
        ext = self._send(topic, correlation_id, ttl_ms, to)
        return self.request(RequestCode.SEND_REPLY_MESSAGE_V2, ext, body)

    def _send(self, topic: str, correlation_id: str, ttl_ms: int, to: str = "") -> dict[str, str]:
        wanted = f"REPLY_TO_CLIENT\1{to or self.client_id}\2CORRELATION_ID\1{correlation_id}\2TTL\1{ttl_ms}\2"
        ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": wanted}
        return ext | {"j": "0", "k": "false", "m": "false"}

    def lock(self, group: str, *queues: int) -> list[int]:
        """Asks for locks of queues of T; returns those that are granted."""
        opaque = self.begin(RequestCode.LOCK_BATCH_MQ, {}, self.body_of(group, queues))
        assert self.answer(opaque)[0] == 0
        return sorted(row["queueId"] for row in json.loads(self._bodies[opaque])["lockOKMQSet"])

    def unlock(self, group: str, *queues: int) -> tuple[int, str]:
        """Gives locks up."""
        return self.request(RequestCode.UNLOCK_BATCH_MQ, {}, self.body_of(group, queues))

    def body_of(self, group: str, queues: tuple[int, ...]) -> bytes:
        rows = [{"topic": "T", "brokerName": "broker", "queueId": queue} for queue in queues]
        return json.dumps({"consumerGroup": group, "clientId": self.client_id, "mqSet": rows}).encode()
