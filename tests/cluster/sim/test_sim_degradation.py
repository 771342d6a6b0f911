"""`replication.degrade`: while the majority is slow and its leader is not, sends of the default level are answered at
level `leader`, and only they; what may be lost is known, and all of it ends by itself."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.service_sections import ReplicationSection
from cluster.replication.acks.degradation import DEGRADED
from cluster.replication.acks.slow_quorum import BEGIN_LOOKS, END_LOOKS
from tests.support.samples import sample
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

SEED = 61
LEADER = {"replication.degrade": "leader", "send.deadline_ms": 20_000}
SLOWER = 300.0
"""The factor of a slow disk: a sync of it takes 0.15 to 1.2 s."""
BEGUN_S = BEGIN_LOOKS + 4.0
ENDED_S = END_LOOKS + 4.0
BEGUN_S_MAX = 30.0
"""A second without a slow decision is chance."""
FULL = "ACK_LEVEL\x01quorum+fsync\x02"
EARLY_S = 0.09


class Sender:
    """A client that sends, one message after the other or by a schedule."""

    def __init__(self, sim: SimCluster, node: SimNode, topic: str = "T") -> None:
        self.sim, self.topic, self.path = sim, topic, node.connect()
        self.path.on_reply = self._answered
        self.sent_s: dict[int, float] = {}
        self.took_s: dict[int, float] = {}

    def _answered(self, opaque: int, code: int, remark: str) -> None:
        self.took_s[opaque] = self.sim.loop.now - self.sent_s[opaque]

    def send(self, properties: str = "") -> int:
        number = len(self.sent_s) + 1
        self.sent_s[number] = self.sim.loop.now
        self.path.ask(send_frame(number, self.topic, b"%s %d" % (self.topic.encode(), number), properties=properties))
        return number

    def run(self, seconds: float, properties: str = "") -> None:
        """Sends a message every 0.1 s."""
        for _ in range(int(seconds * 10)):
            self.send(properties)
            self.sim.loop.run_for(0.1)

    def run_until_degraded(self, leader: SimNode) -> None:
        """Sends until that leader answers early."""
        end = self.sim.loop.now + BEGUN_S_MAX
        while not degraded(leader):
            assert self.sim.loop.now < end
            self.run(0.5)

    def took(self, properties: str = "") -> float:
        """Sends one message; returns the seconds to its answer."""
        number = self.send(properties)
        self.sim.loop.run_until(lambda: number in self.took_s, 20)
        assert codes(self.path, number) == [0]
        return self.took_s[number]

    def answered(self) -> set[int]:
        return {number for number in self.sent_s if codes(self.path, number) == [0]}


def slow(*nodes: SimNode, factor: float = SLOWER) -> None:
    for node in nodes:
        node.disk_factor = factor


def early_answers(node: SimNode) -> float:
    found = sample(node.running.meters.traffic.modes, "raftmq_early_answers_total")
    assert found is not None
    return found


def degraded(node: SimNode) -> bool:
    view = node.running.serving.modes.view()
    raised = node.running.alarms.raised(DEGRADED)
    metric = sample(node.running.meters.traffic.modes, "raftmq_degraded")
    assert (
        view.degraded == metric == raised == node.early.degraded == bool(view.degraded_why) == (view.level == "leader")
    )
    return view.degraded


def begun(sim_of: Any, **config: Any) -> tuple[SimCluster, SimNode, Sender]:
    """A cluster whose followers' disks are slow, and whose leader has noticed."""
    sim = sim_of(**LEADER, **config)
    leader = sim.leader()
    slow(*sim.followers())
    sender = Sender(sim, leader)
    sender.run_until_degraded(leader)
    return sim, leader, sender


def test_off_by_default(sim_of: Any) -> None:
    sim = sim_of(**{"send.deadline_ms": 20_000})
    leader = sim.leader()
    slow(*sim.followers())
    sender = Sender(sim, leader)
    sender.run(BEGUN_S)
    assert not degraded(leader)
    assert not leader.early.window_messages_max
    assert leader.running.serving.modes.view().degrade == "off"
    assert sender.took() > EARLY_S


@pytest.mark.parametrize("cause", ["disks", "links"])
def test_it_begins_and_is_undone_by_itself(sim_of: Any, cause: str) -> None:
    sim = sim_of(**LEADER)
    leader, followers = sim.leader(), sim.followers()
    sender = Sender(sim, leader)
    sender.run(BEGUN_S)
    assert not degraded(leader), "nothing is slow"
    edges = [edge for node in followers for edge in ((leader.host, node.host), (node.host, leader.host))]
    if cause == "disks":
        slow(*followers)
    else:
        sim.network.links.slow.update(dict.fromkeys(edges, 0.1))
    assert sender.took() > EARLY_S
    sender.run_until_degraded(leader)
    assert not any(degraded(node) for node in followers)
    sender.run(3.0)
    late = [took for number, took in sender.took_s.items() if sender.sent_s[number] > sim.loop.now - 2.0]
    assert sorted(late)[len(late) // 2] < EARLY_S, "answers come when the leader has it"
    assert leader.early.window_messages_max
    slow(*followers, factor=1.0)
    sim.network.links.slow.clear()
    sender.run(ENDED_S)
    assert not degraded(leader)
    before = early_answers(leader)
    sender.run(1.0)
    assert early_answers(leader) == before
    assert leader.early.window_messages == 0
    sim.settle()
    assert len(leader.bodies("T")) == len(sender.sent_s) == len(sender.answered())
    sim.check_equal()


def test_one_slow_follower_is_no_slow_majority(sim_of: Any) -> None:
    sim = sim_of(**LEADER)
    leader = sim.leader()
    slow(sim.followers()[0])
    sender = Sender(sim, leader)
    sender.run(BEGUN_S + 3)
    assert not degraded(leader)
    assert max(sender.took_s.values()) < 0.1


def test_only_sends_of_the_default_level_are_answered_early(sim_of: Any) -> None:
    sim, leader, sender = begun(sim_of)
    sim.create_topic("F", attributes={"ack.level": "quorum+fsync"})
    named = Sender(sim, leader, "F")
    before = early_answers(leader)
    for _ in range(3):
        named.took()
        sender.took(FULL)
    assert early_answers(leader) == before
    for number in range(1, 4):
        assert sender.took() < EARLY_S
        assert early_answers(leader) == before + number
        sim.loop.run_until(lambda: leader.proposals.idle, 5)


def test_a_leader_that_has_lost_its_majority_acknowledges_nothing(sim_of: Any) -> None:
    sim, leader, sender = begun(sim_of)
    sim.loop.run_until(lambda: leader.proposals.idle, 10)
    sim.isolate(leader)
    sim.loop.run_for(0.5)
    sender.run(3.0)
    lost = [number for number, at in sender.sent_s.items() if at > sim.loop.now - 3.0]
    assert not sender.answered() & set(lost)
    assert not degraded(leader)
    sim.mend()
    slow(*sim.nodes.values(), factor=1.0)
    sim.settle()
    assert not any(degraded(node) for node in sim.nodes.values())


def test_it_ends_with_the_leadership(sim_of: Any) -> None:
    """The next leader looks for itself."""
    sim, leader, _ = begun(sim_of)
    slow(*sim.nodes.values(), factor=1.0)
    sim.loop.run_for(2.0)  # they catch up
    assert degraded(leader)
    leader.transfer(sim.followers()[0].node_id)
    sim.loop.run_until(lambda: not leader.proposals.open, 10)
    assert not degraded(leader)
    assert not degraded(sim.leader(besides=leader))
    assert leader.proposals.topics.slot("T").ack == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("killed", [True, False])
def test_a_lost_leader_loses_no_more_than_the_window_and_says_how_much(sim_of: Any, killed: bool) -> None:
    sim, leader, sender = begun(sim_of)
    sim.loop.run_until(lambda: leader.proposals.idle, 10)
    sim.isolate(leader)  # nobody else hears of what comes now
    sender.run(0.3)
    modes = leader.running.serving.modes.view()
    assert modes.loss_window_messages
    assert len(leader.early.ledger.undecided) <= modes.loss_window_entries_max  # type: ignore[union-attr]
    acknowledged = sender.answered()
    if killed:
        leader.kill(power=False)
    slow(*sim.nodes.values(), factor=1.0)
    successor = sim.leader(besides=leader)
    after = Sender(sim, successor)
    after.run(0.5)
    if killed:
        leader.start()
    sim.mend()
    sim.settle()
    stored = {int(body.split()[1]) for body in successor.bodies("T")}
    missing = acknowledged - stored
    assert missing
    now = leader.running.serving.modes.view()
    assert now.lost_messages == len(missing) <= modes.loss_window_messages
    assert not degraded(leader)
    sim.check_equal()


def test_a_reload_turns_it_off_at_once(sim_of: Any) -> None:
    sim, leader, sender = begun(sim_of)
    sim.loop.run_until(lambda: leader.proposals.idle, 10)
    leader.append.hold()
    number = sender.send()
    sim.loop.run_until(lambda: leader.undecided, 1, "the send is proposed")
    before = early_answers(leader)
    config = replace(leader.running.config, replication=ReplicationSection())
    leader.run(leader.running.reloading.put_in_force, config)
    assert not degraded(leader)
    leader.append.release()
    sim.loop.run_until(lambda: number in sender.took_s, 5)
    sender.run(BEGUN_S)
    assert early_answers(leader) == before, "what was to be answered early has waited, too"
    assert not degraded(leader)
