"""A seeded random schedule over three nodes: kills, power cuts, partitions, slow disks; then the faults stop.

Whatever happened: an acknowledged send is on every node exactly once, where its reply said; nobody is answered twice;
equal applied indexes mean equal rows; and once the faults are over, everything is acknowledged.

Replay one run:   SIM_SEED=17 pytest tests/cluster/sim/test_sim_random.py
Search longer:    SIM_SEEDS=500 pytest tests/cluster/sim/test_sim_random.py
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from raftlog.errors import NotLeaderError
from tests.support.sim_clients import OnceClient, OwnClient, Sent
from tests.support.sim_cluster import SimCluster
from tests.support.sim_node import SimNode

FAULTS_S = 15.0
SEEDS = [int(os.environ["SIM_SEED"])] if "SIM_SEED" in os.environ else range(int(os.environ.get("SIM_SEEDS", "24")))
WEIGHTS = {
    "kill": 2,
    "power": 2,
    "start": 5,
    "isolate": 2,
    "cut": 2,
    "heal": 4,
    "loss": 1,
    "slow": 1,
    "hold": 2,
    "release": 3,
    "transfer": 2,
    "reset": 1,
}


class Chaos:
    """Does one thing to the cluster now and then."""

    def __init__(self, sim: SimCluster, rng: random.Random) -> None:
        self.sim, self.rng = sim, rng
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        end = self.sim.loop.now + FAULTS_S
        while self.sim.loop.now < end:
            self.sim.loop.run_for(self.rng.uniform(0.02, 0.6))
            (name,) = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            node = self.rng.choice(list(self.sim.nodes.values()))
            self.done[name] += 1
            getattr(self, name)(node)
            check_digests(self.sim)

    def kill(self, node: SimNode) -> None:
        if node.up:
            node.kill(power=False)

    def power(self, node: SimNode) -> None:
        if node.up:
            node.kill(power=True)

    def start(self, node: SimNode) -> None:
        if not node.up:
            node.start()

    def isolate(self, node: SimNode) -> None:
        self.sim.network.isolate(node.node_id)

    def cut(self, node: SimNode) -> None:
        other = self.rng.choice([one for one in self.sim.nodes if one != node.node_id])
        self.sim.network.cut(node.node_id, other)

    def heal(self, node: SimNode) -> None:
        self.sim.network.heal()

    def loss(self, node: SimNode) -> None:
        self.sim.network.loss = self.rng.choice([0.0, 0.02, 0.2])

    def slow(self, node: SimNode) -> None:
        self.sim.network.delay_s = self.rng.choice([(0.0002, 0.002), (0.001, 0.08)])

    def hold(self, node: SimNode) -> None:
        if node.up:
            self.rng.choice([node.append, node.apply]).hold()  # type: ignore[attr-defined]

    def release(self, node: SimNode) -> None:
        if node.up:
            node.append.release()
            node.apply.release()

    def reset(self, node: SimNode) -> None:
        other = self.rng.choice([one for one in self.sim.nodes if one != node.node_id])
        self.sim.network.reset(node.node_id, other)

    def transfer(self, node: SimNode) -> None:
        leader = self.sim.find_leader()
        if leader is not None and node.up and node is not leader:
            try:
                leader.raw.transfer_leadership(node.node_id)
            except NotLeaderError:
                return
            leader.driver.wake()


def check_digests(sim: SimCluster) -> None:
    by_index: dict[int, dict[str, int]] = {}
    for node in sim.running:
        sums = node.sums()
        assert by_index.setdefault(node.state.applied.index, sums) == sums, f"node {node.node_id} differs"


def check_stored(sim: SimCluster, topic: str, sent: list[Sent], *, all_acked: bool) -> None:
    for node in sim.running:
        stored = Counter(node.bodies(topic))
        topic_id = node.state.topics[topic].id
        assert not [body for body, count in stored.items() if count > 1], f"stored twice on node {node.node_id}"
        for message in sent:
            assert message.acked is not None or not all_acked, f"never acknowledged: {message.body!r} {message.codes}"
            if message.acked is None:
                continue
            assert stored[message.body] == 1, f"{message.body!r} was acknowledged, node {node.node_id} has it not"
            queue_id, offset = message.acked
            (item,) = node.state.fetch(topic_id, queue_id, offset, 1)
            assert message.body in node.directory.log.read_at(item.position, item.size), "not where the reply said"


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_sends_survive_anything(seed: int) -> None:
    with SimCluster(seed) as sim:
        sim.create_topic("T")
        own = [OwnClient(sim, f"own{at}", "T", random.Random(f"{seed}/{at}")) for at in range(3)]
        once = [OnceClient(sim, f"once{at}", "T", random.Random(f"{seed}/once{at}")) for at in range(2)]
        chaos = Chaos(sim, random.Random(f"{seed}/chaos"))
        chaos.run()
        for client in (*own, *once):
            client.stopped = True  # type: ignore[attr-defined]
        sim.heal()
        sim.loop.run_until(lambda: not any(client.open for client in own), 60, "every send is acknowledged")
        sim.settle()
        check_digests(sim)
        for client in own:
            check_stored(sim, "T", client.sent, all_acked=True)
        for client in once:
            check_stored(sim, "T", client.sent, all_acked=False)
        assert sum(len(client.sent) for client in own) > 50, "the schedule left the clients nothing to do"


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[tuple[str, object]]:
        with SimCluster(5) as sim:
            sim.create_topic("T")
            client = OwnClient(sim, "c", "T", random.Random(1))
            Chaos(sim, random.Random(2)).run()
            return [(repr(node.state.applied), node.applied_terms) for node in sim.nodes.values()] + [
                (str(message.sequence), message.codes) for message in client.sent
            ]

    assert run() == run()
