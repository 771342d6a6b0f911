"""Requests that are held are passed on, answered and handled in steps, in their order, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.runtime.turns.work import TURN_SHARE
from jepsen_like.sim.machines.turn_bounds import name_of
from raftlog.work import METER
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.cluster.sim.test_sim_proposals import hold_disks, release_disks
from tests.cluster.sim.test_sim_send_order import send, stored
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes

SEED = 58
MANY = 500
"""Requests: passed on in one turn, they charge 15 units each."""
CLIENTS = 4
TURN_MAX = 2 * TURN_SHARE + 1_000
"""Units of one callback: two kinds of cut work may begin in it, and the step that ends a share is done in full."""
PATIENT = {"send.deadline_ms": 20_000, "send.leader_wait_ms": 20_000}


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> SimCluster:
    return sim_of(**PATIENT)


@pytest.fixture
def long(sim: SimCluster) -> list[tuple[str, int]]:
    """The callbacks of nodes that charge more than TURN_MAX."""
    found: list[tuple[str, int]] = []
    sim.loop.turn_bound = TURN_MAX
    sim.loop.on_long_turn = lambda process, callback, units: found.append((name_of(callback), units))
    return found


def as_soon_as(sim: SimCluster, reached: Callable[[], bool], act: Callable[[], None]) -> None:
    """Acts after the first callback of a node that makes it true: those that the callback has scheduled come later."""

    def look(_: object) -> None:
        if reached():
            sim.loop.after_event = None
            act()

    sim.loop.after_event = look


def ask_many(paths: list[ClientPath], sequences: range = range(1, MANY + 1)) -> None:
    for sequence in sequences:
        at = sequence % CLIENTS
        paths[at].ask(send(sequence, f"{at:02x}" * 16))


LATER = range(MANY + 1, MANY + CLIENTS + 1)


def by_client(sequences: list[int]) -> list[list[int]]:
    return [[each for each in sequences if each % CLIENTS == at] for at in range(CLIENTS)]


IN_ORDER = by_client(list(range(1, MANY + CLIENTS + 1)))


def without_leader(sim: SimCluster, *, killed: bool) -> None:
    """Kills the leader or cuts it off. Nobody is elected as long as the others hold their campaigns."""
    former = sim.leader()
    for node in sim.followers():
        node.raw.hold_campaigns("test", True)
    if killed:
        former.kill(power=False)
        sim.loop.run_until(lambda: not any(node.raw.leader_id for node in sim.running), 20, "they miss it")
    else:
        sim.isolate(former)


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("before", ["no leader", "another leader"])
def test_what_was_held_goes_on_in_steps_and_before_what_comes_meanwhile(
    sim: SimCluster, long: list[tuple[str, int]], leads: bool, before: str
) -> None:
    node, other = followers = sim.followers()
    next_one = node if leads else other
    paths = [node.connect() for _ in range(CLIENTS)]
    held = node.forwarded
    if before == "another leader":
        hold_disks(followers)
        ask_many(paths)
        sim.loop.run_for(0.05)
        assert not any(path.replies for path in paths)
        without_leader(sim, killed=False)
        release_disks(followers)
    else:
        without_leader(sim, killed=True)
        ask_many(paths)
    assert len(held) == MANY

    def passed() -> bool:
        return sum(not each.is_with(next_one.node_id) for each in held.values()) < MANY

    as_soon_as(sim, passed, lambda: ask_many(paths, LATER))
    next_one.raw.hold_campaigns("test", False)
    sim.loop.run_until(lambda: sum(len(path.replies) for path in paths) == MANY + CLIENTS, 15, "answers")
    assert sim.find_leader() is next_one
    assert {code for path in paths for opaque in path.replies for code in codes(path, opaque)} == {ResponseCode.SUCCESS}
    assert not long
    assert by_client(stored(sim)) == IN_ORDER


def lose_two_leaders(sim: SimCluster, node: SimNode, paths: list[ClientPath]) -> None:
    """One leader dies with the requests of the clients, and the next one, which has them too, is cut off."""
    former, other = sim.leader(), next(each for each in sim.followers() if each is not node)
    hold_disks([node, other])
    ask_many(paths)
    sim.loop.run_for(0.05)
    without_leader(sim, killed=True)
    release_disks([node, other])
    other.apply.hold()  # it leads, and has not opened its writes
    other.raw.hold_campaigns("test", False)
    sim.loop.run_until(lambda: node.forwarded and all(each.spent for each in node.forwarded.values()), 15)
    sim.isolate(other)
    former.start()
    former.raw.hold_campaigns("test", True)


@pytest.mark.parametrize("lost", [1, 2])
def test_who_comes_behind_many_looks_at_none_of_them(sim: SimCluster, lost: int) -> None:
    """Otherwise a leader that has just been elected gets further behind with each request of a busy client. What two
    leaders had goes to no third one, and holds up what comes later."""
    node = sim.followers()[0]
    paths = [node.connect() for _ in range(CLIENTS)]
    if lost == 1:
        without_leader(sim, killed=True)
        ask_many(paths)
    else:
        lose_two_leaders(sim, node, paths)
    assert len(node.forwarded) == MANY
    units: list[int] = []

    def come(first: int, count: int) -> None:
        before = METER.units
        ask_many(paths, range(first, first + count))
        units.append((METER.units - before) // count)

    node.proposals.opened.add(lambda: come(MANY + 1, MANY))
    node.raw.hold_campaigns("test", False)
    sim.loop.run_until(lambda: units, 15, "it leads")
    if lost == 2:
        for number in range(2 * MANY + 1, 2 * MANY + 9):
            sim.loop.run_for(0.01)
            come(number, 1)
        assert len(node.forwarded) == 2 * MANY + 8
    assert max(units) < MANY // 16, "a look at all of them costs an eighth of their number"


def test_what_came_early_is_handled_in_steps_and_before_what_comes_meanwhile(
    sim: SimCluster, long: list[tuple[str, int]]
) -> None:
    leader, through = sim.leader(), sim.followers()[0]
    paths = [through.connect() for _ in range(CLIENTS)]
    sim.begin_term(leader)
    ask_many(paths)
    early, late = leader.forwarder.gate.early, list[tuple[Any, ...]]()
    sim.loop.run_until(lambda: early.requests == MANY, 2)
    hears = leader.hear(frame=lambda *frame: late.append(frame))
    ask_many(paths, LATER)
    sim.loop.run_until(lambda: len(late) == len(LATER), 1)
    leader.hear(frame=hears.frame)

    def come() -> None:
        for frame in late:
            leader.run(hears.frame, *frame)

    as_soon_as(sim, lambda: early.requests < MANY, come)
    leader.apply.release()
    sim.loop.run_until(lambda: sum(len(path.replies) for path in paths) == MANY + CLIENTS, 10, "answers")
    assert by_client(stored(sim)) == IN_ORDER
    assert not long


def test_those_past_their_deadline_are_answered_in_steps(sim: SimCluster, long: list[tuple[str, int]]) -> None:
    node = sim.followers()[0]
    path = node.connect()
    sim.isolate(node)
    sim.loop.run_until(lambda: not node.raw.leader_id, 20, "it misses the leader")
    for opaque in range(1, MANY + 1):
        path.ask(encode_frame(RequestCode.GET_TOPIC_STATS_INFO, opaque, 0, ext={"topic": "T"}))
    sim.loop.run_until(lambda: len(path.replies) == MANY, 30, "answers")
    assert {codes(path, opaque)[0] for opaque in path.replies} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert not long


def test_those_that_a_lost_leader_had_are_answered_in_steps(sim: SimCluster, long: list[tuple[str, int]]) -> None:
    leader, node = sim.leader(), sim.followers()[0]
    path = node.connect()
    hold_disks(sim.followers())
    for opaque in range(1, MANY + 1):
        path.ask(_creation(opaque))
    sim.loop.run_until(lambda: sum(each.spent for each in node.forwarded.values()) == MANY, 2, "the leader has them")
    leader.kill(power=False)
    sim.loop.run_until(lambda: len(path.replies) == MANY, 1, "answers")
    assert {codes(path, opaque)[0] for opaque in path.replies} == {ResponseCode.SYSTEM_ERROR}
    assert not long


def _creation(opaque: int) -> bytes:
    fields: dict[str, Any] = {"topic": f"T{opaque}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "defaultTopic": "TBW102"}
    return encode_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, opaque, 0, ext=fields)
