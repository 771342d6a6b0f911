"""Requests that are held are passed on, answered and handled in steps, in their order, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cluster.remoting.connection.reply_path import OrderLine
from cluster.remoting.forward.forwarder import Forwarder
from cluster.remoting.forward.held_request import ForwardedRequest
from cluster.runtime.turns.work import TURN_SHARE
from jepsen_like.sim.machines.turn_bounds import name_of
from raftlog.types import NOBODY
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.cluster.sim.test_sim_send_order import send, stored
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes

SEED = 58
MANY = 500
"""Requests: passed on in one turn, they charge 15 units each."""
CLIENTS = 4
TURN_MAX = 2 * TURN_SHARE + 1_000
"""Units of one callback: two kinds of cut work may begin in it, and the step that ends a share is done in full."""


AT_ONCE_MAX = 100


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> SimCluster:
    return sim_of()


@pytest.fixture
def long(sim: SimCluster) -> list[tuple[str, int]]:
    """The callbacks of nodes that charge more than TURN_MAX."""
    found: list[tuple[str, int]] = []
    sim.loop.turn_bound = TURN_MAX
    sim.loop.on_long_turn = lambda process, callback, units: found.append((name_of(callback), units))
    return found


def in_turns(sim: SimCluster, monkeypatch: pytest.MonkeyPatch, forwarder: Forwarder, name: str) -> Counter[int]:
    """Counts the calls of a method by the callback of the loop in which they are made."""
    counts: Counter[int] = Counter()
    method = getattr(forwarder, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[sim.loop.events] += 1
        return method(*args, **kwargs)

    monkeypatch.setattr(forwarder, name, counted)
    return counts


def soon(node: SimNode, call: Callable[[], None]) -> None:
    """Calls it in the next turn of the node's own loop, where its work is metered."""
    assert node.process is not None
    node.loop.call_soon(call, context=node.process.context)


def ask_many(paths: list[ClientPath]) -> None:
    for sequence in range(1, MANY + 1):
        at = sequence % CLIENTS
        paths[at].ask(send(sequence, f"{at:02x}" * 16))


def by_client(sequences: list[int]) -> list[list[int]]:
    return [[each for each in sequences if each % CLIENTS == at] for at in range(CLIENTS)]


IN_ORDER = by_client(list(range(1, MANY + CLIENTS + 1)))


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("before", ["no leader", "another leader"])
def test_what_was_held_goes_on_in_steps_and_before_what_comes_meanwhile(
    sim: SimCluster, long: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, leads: bool, before: str
) -> None:
    node = sim.leader() if leads else sim.followers()[0]
    paths = [node.connect() for _ in range(CLIENTS)]
    held = node.forwarded
    former = sim.followers()[-1].node_id if before == "another leader" else NOBODY
    with node.shut(former, passes_on=True), node.mute():
        ask_many(paths)
        sim.loop.run_until(lambda: len(held) == MANY, 2)
    passed = in_turns(sim, monkeypatch, node.forwarder, "_pass_on")
    soon(node, node.forwarder.pump)
    sim.loop.turn_until(lambda: passed)
    for sequence in range(MANY + 1, MANY + CLIENTS + 1):
        at = sequence % CLIENTS
        paths[at].ask(send(sequence, f"{at:02x}" * 16))
    sim.loop.turn_until(lambda: not node.forwarder._passing)
    assert all(each.is_with(sim.leader().node_id) for each in held.values()), "none is left to the timer"
    sim.loop.run_until(lambda: sum(len(path.replies) for path in paths) == MANY + CLIENTS, 10, "answers")
    assert {code for path in paths for opaque in path.replies for code in codes(path, opaque)} == {ResponseCode.SUCCESS}
    assert by_client(stored(sim)) == IN_ORDER
    assert sum(passed.values()) >= MANY
    assert max(passed.values()) <= AT_ONCE_MAX
    assert not long


@pytest.mark.parametrize("before", ["no leader", "a former leader has them"])
def test_who_comes_behind_many_looks_at_none_of_them(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Otherwise a leader that has just been elected gets further behind with each request of a busy client."""
    node = sim.leader()
    paths = [node.connect() for _ in range(CLIENTS)]
    held = node.forwarded
    former = NOBODY if before == "no leader" else sim.followers()[-1].node_id
    with node.shut(former, passes_on=True), node.mute():
        ask_many(paths)
        sim.loop.run_until(lambda: len(held) == MANY, 2)
    if before != "no leader":
        monkeypatch.setattr(ForwardedRequest, "spent", True)
    joined = Counter[int]()
    join = OrderLine.join

    def counted(line: OrderLine, number: int) -> None:
        joined[number] += 1
        join(line, number)

    monkeypatch.setattr(OrderLine, "join", counted)
    soon(node, node.forwarder.pump)
    sim.loop.turn_until(lambda: len(joined) == MANY)
    for sequence in range(MANY + 1, 2 * MANY + 1):
        at = sequence % CLIENTS
        paths[at].ask(send(sequence, f"{at:02x}" * 16))
    sim.loop.turn_until(lambda: len(joined) == 2 * MANY)
    assert sum(joined.values()) <= 10 * MANY


def test_what_came_early_is_handled_in_steps_and_before_what_comes_meanwhile(
    sim: SimCluster, long: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, through = sim.leader(), sim.followers()[0]
    paths = [through.connect() for _ in range(CLIENTS)]
    early, later = leader.forwarder._early, range(MANY + 1, MANY + CLIENTS + 1)
    with leader.shut():
        ask_many(paths)
        sim.loop.run_until(lambda: len(early) == MANY, 2)
    served = in_turns(sim, monkeypatch, leader.forwarder, "_serve")
    for sequence in later:
        paths[sequence % CLIENTS].ask(send(sequence, f"{sequence % CLIENTS:02x}" * 16))
    sim.loop.run_until(lambda: sum(len(path.replies) for path in paths) == MANY + CLIENTS, 10, "answers")
    assert by_client(stored(sim)) == IN_ORDER
    assert sum(served.values()) >= MANY
    assert max(served.values()) <= AT_ONCE_MAX
    assert not long


def test_those_past_their_deadline_are_answered_in_steps(
    sim: SimCluster, long: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = sim.followers()[0]
    path = node.connect()
    monkeypatch.setattr(node.forwarder, "_leader", lambda: NOBODY)
    answered = in_turns(sim, monkeypatch, node.forwarder, "_answer_expired")
    for opaque in range(1, MANY + 1):
        path.ask(encode_frame(RequestCode.GET_TOPIC_STATS_INFO, opaque, 0, ext={"topic": "T"}))
    sim.loop.run_until(lambda: len(path.replies) == MANY, 20, "answers")
    assert {codes(path, opaque)[0] for opaque in path.replies} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert sum(answered.values()) >= MANY
    assert max(answered.values()) <= AT_ONCE_MAX
    assert not long


def test_those_that_a_lost_leader_had_are_answered_in_steps(
    sim: SimCluster, long: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, node = sim.leader(), sim.followers()[0]
    path = node.connect()
    monkeypatch.setattr(leader.forwarder, "_local", lambda frame: None)
    for opaque in range(1, MANY + 1):
        path.ask(_creation(opaque))
    sim.loop.run_until(lambda: sum(each.spent for each in node.forwarded.values()) == MANY, 2, "the leader has them")
    answered = in_turns(sim, monkeypatch, node.forwarder, "_answer_unknown")
    soon(node, partial(node.forwarder.peer_closed, leader.node_id))
    sim.loop.run_until(lambda: len(path.replies) == MANY, 1, "answers")
    assert {codes(path, opaque)[0] for opaque in path.replies} == {ResponseCode.SYSTEM_ERROR}
    assert sum(answered.values()) >= MANY
    assert max(answered.values()) <= AT_ONCE_MAX
    assert not long


def _creation(opaque: int) -> bytes:
    fields: dict[str, Any] = {"topic": f"T{opaque}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "defaultTopic": "TBW102"}
    return encode_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, opaque, 0, ext=fields)
