"""Sends to a group of brokers that drains: taken from clients with a route of before, then refused (docs/adr/0113)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.replication.drain_grace import GRACE_MS
from cluster.replication.outcome import Outcome
from jepsen_like.client_kit.fields import topic_fields
from jepsen_like.sim.machines.machine import ROUTE_AGE_MS
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from statemachine.cluster_wide.closed_log import CloseBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.commands import Command
from statemachine.levels import DRAINS_LEVEL, GATHERS_LEVEL, QUOTAS_LEVEL
from statemachine.truth import CopyTruth
from tests.support.sim_cluster import ClientPath, SimCluster

TOPIC, RETRIES, ODD, ELSEWHERE = "T", "%RETRY%g", "%odd", "elsewhere"
ACTIVE, DRAINING, RETIRED = ["raftmq-g02", 3], ["raftmq-g02", 3, 1, 5], ["raftmq-g02", 3, 2, 5]
GRACE_S = GRACE_MS / 1000
TICK_S = 2.0


def topic_of(group: int) -> list[Any]:
    return [6, False, 0, {}, 0, 0, "", [[group, 4, 4]]]


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    """Group 2, as the first one has told it of three topics, and is away since."""
    with SimCluster(9, group=2) as made:
        propose(made, Finalize(DRAINS_LEVEL))
        groups = [(TruthKind.BROKER_GROUP, 1, ["raftmq", 3]), (TruthKind.BROKER_GROUP, 2, ACTIVE)]
        topics = [(TruthKind.TOPIC, name, topic_of(2)) for name in (TOPIC, RETRIES, ODD)]
        propose(made, CopyTruth(0, 5, [*groups, *topics, (TruthKind.TOPIC, ELSEWHERE, topic_of(1))]))
        yield made


def propose(sim: SimCluster, command: Command) -> None:
    results = sim.propose(sim.leader(), command)
    sim.loop.run_until(lambda: results, 20, "an answer")
    assert results[0].outcome is Outcome.OK
    assert results[0].results[0].ok, results


def turn(sim: SimCluster, row: list[Any]) -> None:
    """The first group tells what group 2 does from now on."""
    copied = sim.leader().state.truth.copied
    propose(sim, CopyTruth(copied, copied + 1, [(TruthKind.BROKER_GROUP, 2, row)]))


class Producer:
    """A client of the leader."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim, self.path, self.number = sim, ClientPath(sim.leader()), 0

    def send(self, topic: str = TOPIC, **properties: str) -> tuple[int, str]:
        """Code and remark of the answer to a send."""
        self.ask(topic, **properties)
        return self.answer()

    def ask(self, topic: str = TOPIC, **properties: str) -> None:
        """Sends, and waits for no answer."""
        self.number += 1
        asked = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        values = ("g", topic, "TBW102", "4", "1", "0", "1", "0", asked, "0", "false")
        ext = dict(zip("abcdefghijm", values, strict=True))
        self.path.ask(encode_frame(310, self.number, 0, ext=ext, body=b"x"))

    def answer(self) -> tuple[int, str]:
        """Code and remark of the answer to the last send."""
        self.sim.loop.run_until(lambda: self.number in self.path.replies, 10, "an answer")
        code, remark = self.path.replies[self.number][0][:2]
        return code, remark or ""


def test_a_client_with_a_route_of_before_is_served_until_it_has_asked_again(sim: SimCluster) -> None:
    producer = Producer(sim)
    assert producer.send()[0] == 0
    turn(sim, DRAINING)
    sim.loop.run_for(GRACE_S - 2 * TICK_S)
    assert producer.send()[0] == 0
    sim.loop.run_for(3 * TICK_S)
    code, remark = producer.send()
    assert (code, remark) == (16, "group 2 is drained and takes no new messages; ask for the topic's route again")
    assert producer.send(TRAN_MSG="true", PGROUP="p")[0] == 16
    assert producer.send(DELAY="1")[0] == 16
    assert len(sim.leader().bodies(TOPIC)) == 2


def test_what_was_consumed_in_vain_is_stored_while_the_group_drains(sim: SimCluster) -> None:
    producer = Producer(sim)
    turn(sim, DRAINING)
    sim.loop.run_for(GRACE_S + TICK_S)
    assert producer.send()[0] == 16
    assert producer.send(RETRIES)[0] == 0
    assert producer.send(ODD)[0] == 16, "a name of somebody's own"


def test_a_drain_that_is_cancelled_takes_messages_at_once(sim: SimCluster) -> None:
    producer = Producer(sim)
    turn(sim, DRAINING)
    sim.loop.run_for(GRACE_S + TICK_S)
    assert producer.send()[0] == 16
    turn(sim, ACTIVE)
    sim.loop.run_for(TICK_S)
    assert producer.send()[0] == 0
    turn(sim, DRAINING)
    sim.loop.run_for(GRACE_S / 2)
    assert producer.send()[0] == 0, "it counts from its own begin"


def test_the_next_leader_lets_clients_ask_again_too(sim: SimCluster) -> None:
    turn(sim, DRAINING)
    sim.loop.run_for(GRACE_S + TICK_S)
    before = sim.leader()
    before.transfer(sim.followers()[0].node_id)
    sim.leader(besides=before)
    producer = Producer(sim)
    assert producer.send()[0] == 0
    sim.loop.run_for(GRACE_S + TICK_S)
    assert producer.send()[0] == 16


def test_no_first_send_makes_a_topic_in_a_group_that_drains(sim: SimCluster) -> None:
    producer = Producer(sim)
    turn(sim, DRAINING)
    code, remark = producer.send("new")
    assert (code, "ask for the topic's route again" in remark) == (16, True)


@pytest.mark.parametrize("row", [DRAINING, RETIRED])
def test_a_tool_that_makes_a_topic_in_all_groups_is_told_which_takes_none(sim: SimCluster, row: list[Any]) -> None:
    """`mqadmin updateTopic -c` asks each group's leader in turn, with the request that `-b` makes too."""
    turn(sim, row)
    path = ClientPath(sim.leader())
    path.ask(encode_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, 1, 0, ext=topic_fields("new")))
    sim.loop.run_until(lambda: 1 in path.replies, 10, "an answer")
    says = "is drained, and takes no further topic" if row is DRAINING else "has retired, and takes no topic"
    assert path.replies[1][0][:2] == (16, f"group 2 {says}; other groups of brokers do")


# -- a topic that is only read


def test_a_topic_that_is_only_read_takes_messages_until_clients_have_asked_again(sim: SimCluster) -> None:
    propose(sim, Finalize(GATHERS_LEVEL))
    producer = Producer(sim)

    def place(*queues: int) -> None:
        copied = sim.leader().state.truth.copied
        row = [6, False, 0, {}, 0, copied, "", [[1, 4, 4], [2, *queues]]]
        propose(sim, CopyTruth(copied, copied + 1, [(TruthKind.TOPIC, TOPIC, row)]))

    place(4, 0)
    assert producer.send()[0] == 0
    assert producer.send("%odd")[0] == 0
    sim.loop.run_for(ROUTE_AGE_MS / 1000 + TICK_S)
    assert producer.send() == (16, f"topic {TOPIC} takes no new messages in group 2; ask for its route again")
    assert producer.send(DELAY="1")[0] == 16
    assert producer.send("%odd")[0] == 0, "another topic"
    place(4, 4)
    assert producer.send()[0] == 0
    assert len(sim.leader().bodies(TOPIC)) == 2


# -- the log is closed


def close(sim: SimCluster, *, force: bool = False) -> bool:
    """Asks to close the log of the drain under way, as of now; True if it was closed."""
    state = sim.leader().state
    since_ms = state.broker_groups.by_number[2].since_ms
    results = sim.propose(sim.leader(), CloseBrokerGroup(since_ms, state.applied.index, force))
    sim.loop.run_until(lambda: results, 20, "an answer")
    assert results[0].outcome is Outcome.OK
    return bool(results[0].results[0].ok)


def test_a_log_that_is_closed_refuses_every_send(sim: SimCluster) -> None:
    producer = Producer(sim)
    turn(sim, DRAINING)
    assert producer.send()[0] == 0
    assert close(sim)
    says = "group 2 has retired; ask for the topic's route again"
    for topic in (TOPIC, RETRIES, "new"):
        assert producer.send(topic) == (16, says), "within the 70 s too, and of what was consumed in vain"
    assert producer.send(DELAY="1") == (16, says)
    before = sim.leader()
    before.transfer(sim.followers()[0].node_id)
    sim.leader(besides=before)
    assert Producer(sim).send() == (16, says), "the next leader knows it"
    turn(sim, ACTIVE)
    assert Producer(sim).send() == (16, says), "a cancel that comes too late changes nothing"
    assert len(sim.leader().bodies(TOPIC)) == 1


def test_a_send_that_comes_while_the_log_is_closed_is_decided_by_that(sim: SimCluster) -> None:
    """What came before goes before: the log stays open then. What comes after waits for the outcome."""
    turn(sim, DRAINING)
    state = sim.leader().state
    for early in (True, False):
        producer = Producer(sim)
        if early:
            producer.ask(TOPIC)
        command = CloseBrokerGroup(state.broker_groups.by_number[2].since_ms, state.applied.index, False)
        results = sim.propose(sim.leader(), command)
        producer.ask(TOPIC)
        assert producer.answer()[0] == (0 if early else 16)
        assert results[0].results[0].ok is not early
    assert len(sim.leader().bodies(TOPIC)) == 2


def test_what_waits_for_a_quota_goes_before_the_log_is_closed(sim: SimCluster) -> None:
    propose(sim, Finalize(QUOTAS_LEVEL))
    copied = sim.leader().state.truth.copied
    quota = (TruthKind.QUOTA, f"topic={TOPIC}", [{"send_messages": 1}, 1, "ann"])
    propose(sim, CopyTruth(copied, copied + 1, [quota]))
    producer = Producer(sim)
    turn(sim, DRAINING)
    for _ in range(5):
        producer.ask()
    waiting = sim.leader().proposals.flow.paced
    sim.loop.run_until(lambda: len(waiting) == 4, 5, "four wait for the quota")
    assert not close(sim, force=True), "they come before it"
    assert producer.answer()[0] == 0
    assert len(waiting) == 0
    assert close(sim)
    assert len(sim.leader().bodies(TOPIC)) == 5


def test_what_waits_in_a_log_that_was_closed_by_force_waits_for_ever(sim: SimCluster) -> None:
    producer = Producer(sim)
    assert producer.send(DELAY="1")[0] == 0
    turn(sim, DRAINING)
    assert close(sim, force=True)
    sim.loop.run_for(30)
    assert sim.leader().state.timers.counts.pending == 1
    assert len(sim.leader().bodies(TOPIC)) == 0
