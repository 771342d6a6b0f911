"""A turn of a node's loop takes long: sockets fill, timers come due, and nobody is deposed or given up for silence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.broker.groups.group_members import EXPIRY_MS, SCAN_MS
from cluster.peer import connections
from cluster.peer.keyring import Keyring
from raftlog.core.election import has_quorum_contact
from raftlog.types import Role
from raftmq_wire.codec import encode_frame
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

SHORT_S = 0.4
"""A follower waits at least 0.5 s for its leader."""


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(int(os.environ.get("SIM_SEED", "3"))) as made:
        made.create_topic("T")
        made.loop.run_for(2)
        yield made


def office(sim: SimCluster) -> tuple[int, int]:
    return sim.leader().raw.term, sim.leader().node_id


def stall(sim: SimCluster, seconds: float, *nodes: SimNode) -> None:
    for node in nodes:
        node.stall(seconds)
    sim.loop.run_for(seconds + 2)


def test_a_leader_keeps_its_office_through_a_turn_that_is_shorter_than_the_others_patience(sim: SimCluster) -> None:
    before = office(sim)
    for _ in range(20):
        stall(sim, SHORT_S, sim.leader())
    assert office(sim) == before


@pytest.mark.parametrize("seconds", [0.1, 0.6, 1.1, 5.0])
def test_followers_that_stood_still_depose_nobody(sim: SimCluster, seconds: float) -> None:
    before = office(sim)
    for follower in sim.followers():
        stall(sim, seconds, follower)
    assert office(sim) == before


@pytest.mark.parametrize("seconds", [0.6, 5.0])
def test_nobody_is_deposed_if_all_stood_still_at_once(sim: SimCluster, seconds: float) -> None:
    before = office(sim)
    for _ in range(2):
        stall(sim, seconds, *sim.running)
    assert office(sim) == before


def test_a_heartbeat_in_the_sockets_comes_before_the_tick_that_would_end_in_a_campaign(sim: SimCluster) -> None:
    before, (follower, _) = office(sim), sim.followers()
    roles = set[Role]()
    sim.loop.after_event = lambda process: roles.add(follower.raw.role)
    sim.cut(sim.leader(), follower)
    raft = follower.raw.raft
    sim.loop.run_until(lambda: raft.election_elapsed == raft.election_timeout - 1, 2)
    follower.stall(SHORT_S)
    sim.network.heal()
    sim.loop.run_for(2)
    assert (office(sim), roles) == (before, {Role.FOLLOWER})


def test_an_answer_in_the_sockets_comes_before_the_tick_that_would_end_in_a_step_down(sim: SimCluster) -> None:
    before, leader = office(sim), sim.leader()
    for follower in sim.followers():
        sim.cut(follower, leader)
    raft = leader.raw.raft
    sim.loop.run_until(
        lambda: raft.election_elapsed == raft.config.election_ticks - 1 and not has_quorum_contact(raft), 2
    )
    leader.stall(SHORT_S)
    sim.network.heal()
    sim.loop.run_for(2)
    assert office(sim) == before


def test_a_leader_whose_followers_stood_still_goes_on(sim: SimCluster) -> None:
    """It hears no majority for longer than it would wait, and steps down; with its followers back there is a leader
    within 2 s."""
    stall(sim, 5, *sim.followers())
    assert sim.find_leader() is not None


def test_a_request_whose_answer_lies_in_the_sockets_is_not_given_up(sim: SimCluster) -> None:
    """Its deadline passes while the node that passed it on stands still."""
    through = sim.followers()[0]
    path = through.connect()
    path.ask(send_frame(1, "T", b"a"))
    stall(sim, 4, through)
    assert codes(path, 1) == [0]


def test_a_challenge_that_lies_in_the_sockets_is_no_silence(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The dialler must not take its peer for one without a secret."""
    one, other = sim.followers()
    opened: list[connections.Link] = []
    unanswered = connections.Link._unanswered
    monkeypatch.setattr(connections.Link, "_unanswered", lambda link: (opened.append(link), unanswered(link)))
    one.transport.keyring = Keyring(one.transport.keyring.keys)
    one.transport.challengers.clear()
    sim.reset(one, other)
    links, dialled = one.transport.links, one.transport.dialled
    sim.loop.run_until(
        lambda: any(link.peer == other.node_id and link._hello and not link._challenge for link in dialled),
        5,
        every_s=0.0001,
    )
    assert one.transport.keyring.keys
    stall(sim, 2 * connections.UNANSWERED_S, one)
    assert opened == []
    assert {channel for peer, channel in links if peer == other.node_id} == {"control", "bulk"}


def test_the_time_in_which_a_node_stood_still_makes_no_member_silent(sim: SimCluster) -> None:
    node = sim.followers()[0]
    body = (
        b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[]}]}'
    )
    path = node.connect()
    path.ask(encode_frame(34, 1, 0, body=body))
    stall(sim, (EXPIRY_MS + SCAN_MS) / 1000, node)
    assert node.running.serving.broker.members.consumer_ids("g") == ["c"]
    sim.loop.run_for((EXPIRY_MS + SCAN_MS) / 1000)
    assert node.running.serving.broker.members.consumer_ids("g") == []


def test_what_a_follower_says_of_its_staleness_counts_the_standstill(sim: SimCluster) -> None:
    follower, leader = sim.followers()[0], sim.leader()
    sim.cut(leader, follower)
    for other in sim.followers():
        if other is not follower:
            sim.cut(other, follower)
    stalled_s = 3.0
    follower.stall(stalled_s)
    sim.loop.run_for(stalled_s + 0.1)
    assert follower.raw.role is Role.FOLLOWER
    ext: dict[str, Any] = {}
    follower.running.serving.modes.reads.label(ext)
    assert int(ext["raftmqStalenessMs"]) >= 1000 * stalled_s


def three_long_turns(sim: SimCluster, *nodes: SimNode) -> None:
    for _ in range(3):
        stall(sim, 0.7, *nodes)


def patient(seed: int) -> SimCluster:
    """Its followers wait for longer than the stalls take."""
    return SimCluster(seed, **{"raft.election_ticks": 60})


def test_a_leader_that_stands_still_again_and_again_hands_over_once() -> None:
    with patient(4) as sim:
        first = sim.leader()
        sim.loop.run_for(2)
        three_long_turns(sim, first)
        second = sim.leader()
        assert second is not first
        assert first.running.alarms.raised("slow_turns")
        assert [node.running.peers.links.slow_turns.handed for node in sim.running].count(1) == 1
        term = second.raw.term
        three_long_turns(sim, second)  # what made the turns long has followed it
        assert (sim.leader(), sim.leader().raw.term) == (second, term)
        assert second.running.alarms.raised("slow_turns")


def test_leadership_stays_if_all_stand_still_again_and_again() -> None:
    with patient(5) as sim:
        before = office(sim)
        sim.loop.run_for(2)
        three_long_turns(sim, *sim.running)
        assert office(sim) == before
        assert sim.leader().running.alarms.raised("slow_turns")
