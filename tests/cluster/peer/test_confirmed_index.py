"""A follower learns from the leader up to which index it must have applied the log, whatever is lost on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.peer.confirmed_index import ANSWER_MS, WAIT_MS, ConfirmedIndex
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.turns.work import Turns
from raftlog.types import NodeId
from tests.support.rows import each_row


class Cluster:
    """Three nodes by hand: frames wait in `wire` until the test delivers or loses them."""

    def __init__(self) -> None:
        self.wire: list[tuple[int, int, Kind, list[Any]]] = []
        self.calls: list[Callable[[], object]] = []
        self.timers: list[Callable[[], object]] = []
        self.nodes = {node: Node(self, node) for node in (1, 2, 3)}
        self.nodes[1].leads = True
        self.acked = 0
        self.now_ms = 0

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()

    def look(self) -> None:
        """All timers fire."""
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()
        self.run()

    def deliver(self, count: int = 99) -> None:
        for _ in range(min(count, len(self.wire))):
            sender, to, kind, header = self.wire.pop(0)
            self.nodes[to].asks.on_frame(NodeId(sender), kind, header, b"")
        self.run()

    def write(self) -> None:
        """The leader acknowledges an entry, which its followers have not applied."""
        self.acked += 1
        next(node for node in self.nodes.values() if node.leads).applied = self.acked


class Node:
    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster, self.id = cluster, node
        self.leads = False
        self.confirms = True
        self.leader = 1
        self.applied = 0
        self.level = 13
        self.reached = True
        numbers = iter(range(node * 1000, 1 << 40))
        links: Any = SimpleNamespace(send_frame=self.send, request_ids=lambda: numbers)
        reads: Any = SimpleNamespace(
            writes_open=lambda: self.leads,
            read_index=self.read_index,
            monotonic_ms=lambda: cluster.now_ms,
            call_later=lambda _, callback: cluster.timers.append(callback),
        )
        turns = Turns(cluster.calls.append)
        self.asks = ConfirmedIndex(
            links,
            reads,
            turns,
            leader=lambda: NodeId(self.leader),
            applied=lambda: self.applied,
            level=lambda: self.level,
        )

    def send(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        if self.reached:
            self.cluster.wire.append((self.id, peer, kind, header))
        return self.reached

    def read_index(self, done: Callable[[bool], None]) -> None:
        self.cluster.calls.append(lambda: done(self.leads and self.confirms))

    def ask(self) -> list[bool]:
        told: list[bool] = []
        self.asks.ask(told.append)
        return told


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.run()


def test_who_asks_is_told_when_all_that_was_acknowledged_is_applied(cluster: Cluster) -> None:
    late = cluster.nodes[2]
    cluster.write()
    told = late.ask()
    cluster.deliver()
    cluster.deliver()
    assert told == []
    late.applied = 1
    cluster.look()
    assert told == [True]


def test_who_asks_while_a_question_is_under_way_waits_for_the_next(cluster: Cluster) -> None:
    """Its index may be older than what they want to see."""
    late = cluster.nodes[2]
    first = late.ask()
    cluster.deliver()  # the question; the answer says 0
    cluster.write()
    second = late.ask()
    third = late.ask()
    cluster.deliver()
    assert (first, second, third) == ([True], [], [])
    assert [kind for _, _, kind, _ in cluster.wire] == [Kind.READ_INDEX]  # one question for both
    cluster.deliver()
    cluster.deliver()
    assert (second, third) == ([], [])
    late.applied = 1
    cluster.look()
    assert (second, third) == ([True], [True])


def test_without_a_leader_who_asks_is_told_so_in_time(cluster: Cluster) -> None:
    late = cluster.nodes[2]
    late.leader = 0
    told = late.ask()
    late.asks.tick(WAIT_MS - 1)
    cluster.run()
    assert told == []
    assert not cluster.wire
    late.asks.tick(WAIT_MS)
    cluster.run()
    assert told == [False]


def test_what_nobody_waits_for_any_more_is_forgotten(cluster: Cluster) -> None:
    late = cluster.nodes[2]
    cluster.write()
    for now_ms in range(0, 20 * WAIT_MS, WAIT_MS):
        cluster.now_ms = now_ms
        late.ask()
        cluster.deliver()
        cluster.deliver()
        late.asks.tick(now_ms)
        cluster.run()
    assert len(late.asks._behind) <= 1


def test_a_lost_question_is_put_again_and_an_old_answer_counts_for_nothing(cluster: Cluster) -> None:
    late = cluster.nodes[2]
    told = late.ask()
    lost = cluster.wire.pop()
    cluster.write()
    cluster.now_ms = ANSWER_MS
    late.asks.tick(ANSWER_MS)
    assert len(cluster.wire) == 1
    late.asks.on_frame(NodeId(1), Kind.READ_INDEX_REPLY, [lost[3][0], 0], b"")
    cluster.run()
    assert told == []
    cluster.deliver()
    cluster.deliver()
    late.applied = 1
    cluster.look()
    assert told == [True]


@pytest.mark.parametrize("how", ["another leads", "this node leads", "the connection closed", "it no longer leads"])
def test_a_question_follows_the_leader(cluster: Cluster, how: str) -> None:
    late, raw = cluster.nodes[2], SimpleNamespace()
    told = late.ask()
    if how == "it no longer leads":
        cluster.nodes[1].leads = False
        cluster.deliver()
        cluster.deliver()
        assert told == []
    cluster.wire.clear()
    new = late if how == "this node leads" else cluster.nodes[3]
    cluster.nodes[1].leads, new.leads = False, True
    late.leader = new.id
    if how == "the connection closed":
        late.asks.peer_closed(NodeId(1))
    elif how == "it no longer leads":
        late.asks.tick(1)
    else:
        late.asks.on_role(raw)  # type: ignore[arg-type]
    cluster.run()
    cluster.deliver()
    cluster.deliver()
    assert told == [True]


def test_it_has_a_sense_on_followers_of_a_cluster_that_knows_the_frames(cluster: Cluster) -> None:
    late = cluster.nodes[2]
    assert late.asks.is_possible
    assert not cluster.nodes[1].asks.is_possible
    late.level = 12
    assert not late.asks.is_possible


@each_row("header", [[], ["1"], [-1], [1, 2, 3], [1 << 63], [None]])
def test_a_malformed_question_ends_the_connection(cluster: Cluster, header: list[Any]) -> None:
    with pytest.raises(WireError, match="malformed"):
        cluster.nodes[1].asks.on_frame(NodeId(2), Kind.READ_INDEX, header, b"")
    with pytest.raises(WireError, match="malformed"):
        cluster.nodes[1].asks.on_frame(NodeId(2), Kind.READ_INDEX_REPLY, [*header, -2], b"")


@each_row("seed", range(40))
def test_in_any_order_nobody_is_told_before_it_is_applied_and_everybody_is_told_once(seed: int) -> None:
    rng, cluster = random.Random(seed), Cluster()
    asked: list[tuple[Node, int, list[bool]]] = []
    for _ in range(300):
        node = cluster.nodes[rng.choice((1, 2, 3))]
        match rng.randrange(9):
            case 0 | 1:
                told: list[bool] = []
                index = cluster.acked

                def tell(ok: bool, node: Node = node, index: int = index, told: list[bool] = told) -> None:
                    assert not ok or node.applied >= index, f"seed {seed}: told of {index} at {node.applied}"
                    told.append(ok)

                node.asks.ask(tell)
                asked.append((node, index, told))
            case 2:
                cluster.write()
            case 3:
                node.applied = max(node.applied, rng.randint(node.applied, cluster.acked))
                cluster.look()
            case 4 | 5:
                cluster.deliver(1)
            case 6 if cluster.wire:
                cluster.wire.pop(rng.randrange(len(cluster.wire)))
            case 7:
                cluster.now_ms += rng.randrange(400)
                for each in cluster.nodes.values():
                    each.asks.tick(cluster.now_ms)
            case 8 if rng.random() < 0.2:
                for each in cluster.nodes.values():
                    each.leads, each.leader = each is node, node.id
                node.applied = cluster.acked
                for each in cluster.nodes.values():
                    each.asks.on_role(SimpleNamespace())  # type: ignore[arg-type]
        cluster.run()
    for _ in range(6):
        cluster.now_ms += WAIT_MS
        for each in cluster.nodes.values():
            each.asks.tick(cluster.now_ms)
        cluster.run()
        cluster.deliver()
    assert all(len(told) == 1 for _, _, told in asked), f"seed {seed}"
    assert any(told == [True] for _, _, told in asked)
