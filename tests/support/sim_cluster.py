"""Three SimNodes, their network, and clients, on one loop in virtual time. One seed decides everything."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from cluster.config.loading import load
from cluster.peer.memory import MemoryNetwork
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.wire.codec import FLAG_ONEWAY, encode_frame
from raftlog.storage.genesis import Genesis, Voter
from raftlog.storage.identity import Identity
from raftlog.storage.memory_fs import MemoryFileSystem
from raftlog.storage.node_dir import create_node_dir
from raftlog.types import NodeId
from statemachine.commands import CREATE_TOPIC, Command
from tests.support.sim_node import DATA, ClientPath, SimNode
from tests.support.virtual_loop import VirtualLoop

GROUP_ID = 1
IDS = (NodeId(1), NodeId(2), NodeId(3))
CLUSTER = UUID(int=7)


class SimCluster:
    """`with SimCluster(seed) as sim: ...`"""

    def __init__(self, seed: int, *, segment_size: int = 1 << 16, **overrides: Any) -> None:
        print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.network = MemoryNetwork(self.loop, random.Random(self.rng.random()), GROUP_ID)
        voters = tuple(Voter(node_id, UUID(int=node_id)) for node_id in IDS)
        genesis = Genesis(CLUSTER, GROUP_ID, segment_size, 1_700_000_000_000, voters)
        self.nodes: dict[NodeId, SimNode] = {}
        for node_id, node_uuid in voters:
            fs = MemoryFileSystem()
            create_node_dir(fs, DATA, Identity(CLUSTER, GROUP_ID, node_id, node_uuid, 1_700_000_000_000), genesis)
            config = load(None, None, {"node.id": int(node_id), "node.data_dir": "unused", **overrides})
            rng = random.Random(self.rng.random())
            self.nodes[node_id] = SimNode(node_id, config, fs, self.loop, rng, self.network)

    def __enter__(self) -> SimCluster:
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.loop.close()

    # --- the test's hands --------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.up]

    def find_leader(self) -> SimNode | None:
        """Who takes writes in the highest term, if anybody does."""
        leaders = [node for node in self.running if node.proposals.open]
        return max(leaders, key=lambda node: node.raw.term, default=None)

    def leader(self, limit_s: float = 30.0, besides: SimNode | None = None) -> SimNode:
        """Waits until somebody (but `besides`) takes writes."""
        self.loop.run_until(lambda: self.find_leader() not in (None, besides), limit_s, "a leader")
        leader = self.find_leader()
        assert leader is not None
        return leader

    def followers(self) -> list[SimNode]:
        leader = self.leader()
        return [node for node in self.running if node is not leader]

    def propose(self, node: SimNode, *commands: Command) -> list[ProposeResult]:
        """Submits commands; the list fills when they are settled."""
        results: list[ProposeResult] = []
        node.proposals.submit_commands(list(commands), results.append)
        return results

    def create_topic(self, name: str, queues: int = 2, **config: Any) -> None:
        """Creates it and waits until every running node has it."""
        fields = {"name": name, "read_queues": queues, "write_queues": queues, "perm": 6, **config}
        results = self.propose(self.leader(), [CREATE_TOPIC, fields, False])
        self.loop.run_until(lambda: results, 10, "the topic is created")
        assert results[0].outcome is Outcome.OK, results
        self.loop.run_until(lambda: all(name in node.state.topics for node in self.running), 10, "topic everywhere")

    def heal(self) -> None:
        """No faults any more, everybody up."""
        self.network.heal()
        self.network.loss = 0.0
        self.network.delay_s = (0.0002, 0.002)
        for node in self.nodes.values():
            if node.up:
                node.append.release()
                node.apply.release()
            else:
                node.start()

    def settle(self, limit_s: float = 60.0) -> None:
        """Waits until all have applied the same log and nobody waits for an answer."""
        self.leader(limit_s)

        def same() -> bool:
            if len(self.running) < len(self.nodes):
                return False
            marks = {(n.state.applied, n.raw.last_index, n.raw.commit_index) for n in self.running}
            idle = all(n.proposals.bytes_inflight == 0 and not n.forwarder.bytes_held for n in self.running)
            return len(marks) == 1 and idle and all(n.state.applied.index == n.raw.last_index for n in self.running)

        self.loop.run_until(same, limit_s, "equal applied logs")

    def check_equal(self) -> None:
        """Equal rows on every node (call `settle` first)."""
        sums = {node.node_id: node.sums() for node in self.running}
        assert len({tuple(sorted(one.items())) for one in sums.values()}) == 1, sums


def send_frame(
    opaque: int,
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    key: str = "",
    pid: bytes = b"",
    seq: int = 0,
    low: int = 0,
    oneway: bool = False,
    serialize_type: int = 0,
    properties: str = "",
) -> bytes:
    """A send request (code 310) as a client writes it; with `pid` it is our own client's."""
    ext = {
        "a": "g",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": (f"UNIQ_KEY\x01{key}\x02" if key else "") + properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    if pid:
        ext |= {"raftmqPid": pid.hex(), "raftmqSeq": str(seq), "raftmqLow": str(low)}
    flag = FLAG_ONEWAY if oneway else 0
    return encode_frame(310, opaque, flag, ext=ext, body=body, serialize_type=serialize_type, language="JAVA")


def codes(path: ClientPath, opaque: int) -> list[int]:
    """The codes of all answers to a request so far: more than one is a defect."""
    return [code for code, _, _ in path.replies.get(opaque, [])]
