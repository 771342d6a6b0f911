"""Queries by key (12) and by position (33) for what is not there: every node gives the leader's answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.runtime.peer_frames import Kind
from raftmq_wire.codec import FLAG_ONEWAY, encode_frame
from raftmq_wire.codes import RequestCode
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes

ENDS = {"maxNum": "5", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
MISSES = {
    "no such key": (RequestCode.QUERY_MESSAGE, {"topic": "T", "key": "none", **ENDS}, 22),
    "no such unique key": (
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "none", "_UNIQUE_KEY_QUERY": "true", **ENDS},
        22,
    ),
    "no such topic": (RequestCode.QUERY_MESSAGE, {"topic": "U", "key": "none", **ENDS}, 17),
    "no such position": (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T", "offset": str(10**15)}, 1),
}


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(41) as made:
        made.create_topic("T")
        made.leader()
        yield made


def ask(path: ClientPath, miss: str, opaque: int) -> None:
    code, ext, _ = MISSES[miss]
    path.ask(encode_frame(code, opaque, 0, ext=ext))


def answer(sim: SimCluster, path: ClientPath, opaque: int, limit_s: float = 5.0) -> int:
    sim.loop.run_until(lambda: codes(path, opaque), limit_s, f"an answer to {opaque}")
    (code,) = codes(path, opaque)
    return code


def held_for(node: SimNode) -> tuple[int, int]:
    """Costly requests under way, and bytes that are reserved for answers."""
    router = node.running.serving.remoting.router
    return sum(each.under_way for each in router.table.costly), router.memory.unsent.taken


@pytest.mark.parametrize("miss", MISSES)
def test_every_node_says_that_there_is_none(sim: SimCluster, miss: str) -> None:
    for node in sim.running:
        path = node.connect()
        for opaque in range(1, 40):
            ask(path, miss, opaque)
        assert {answer(sim, path, opaque) for opaque in range(1, 40)} == {MISSES[miss][2]}
        assert held_for(node) == (0, 0), node.node_id
    assert held_for(sim.leader()) == (0, 0)


@pytest.mark.parametrize("miss", MISSES)
@pytest.mark.parametrize("gone", [True, False])
def test_nothing_goes_to_the_leader_for_which_nobody_waits(sim: SimCluster, miss: str, gone: bool) -> None:
    leader, follower = sim.leader(), sim.followers()[0]
    path, heard = follower.connect(), list[int]()
    leader.hear(frame=lambda peer, kind, header, payload: heard.append(kind))
    code, ext, _ = MISSES[miss]
    path.ask(encode_frame(code, 1, 0 if gone else FLAG_ONEWAY, ext=ext))
    if gone:
        path.close()
    sim.loop.run_for(1)
    assert Kind.FORWARD not in heard
    assert path.replies == {}
    assert gone or held_for(follower) == (0, 0)


@pytest.mark.parametrize("miss", MISSES)
def test_without_a_leader_nobody_says_so(sim: SimCluster, miss: str) -> None:
    follower = sim.followers()[0]
    sim.isolate(follower)
    sim.loop.run_until(lambda: not follower.raw.leader_id, 20, "it misses the leader")
    path = follower.connect()
    ask(path, miss, 1)
    assert answer(sim, path, 1, 30) == 14
    assert held_for(follower) == (0, 0)


@pytest.mark.parametrize("miss", MISSES)
def test_a_leader_that_is_deposed_meanwhile_leaves_the_answer_to_the_next(sim: SimCluster, miss: str) -> None:
    former, through = sim.leader(), sim.followers()[0]
    own, other = former.connect(), through.connect()
    sim.isolate(former)
    ask(own, miss, 1)
    sim.loop.run_until(lambda: sim.leader(besides=former), 30, "another leader")
    ask(other, miss, 1)
    sim.mend()
    assert answer(sim, own, 1, 30) in (14, MISSES[miss][2])
    assert answer(sim, other, 1, 30) == MISSES[miss][2]
