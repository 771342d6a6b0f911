"""Several nodes judge by one quota: together they let its rate through, and whoever is asked most gets most."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.flow.quota_buckets import BURST_MS, Bucket, QuotaBuckets
from cluster.flow.quota_limits import SENDS
from cluster.flow.quota_rules import QuotaRules
from cluster.flow.quota_shares import KEYS_MAX, STEP_UNITS, QuotaShares
from raftlog.work import METER
from statemachine.access.quotas import Quota
from tests.support.rows import each_row

RATE = 200
STEP_MS = 20


def look(shares: QuotaShares, now_ms: int) -> None:
    """Takes all steps of a look."""
    for _ in shares.look(now_ms):
        pass


class Node:
    """A node at which a number of messages a second come, each of which waits for a second at most."""

    def __init__(self, name: int, nodes: int, limits: dict[str, int], subject: str = "topic=T") -> None:
        self.name, self.asked, self.waiting, self.passed = name, 0.0, 0.0, 0
        quota = {subject: Quota(limits, 0, "")}
        quotas: Any = SimpleNamespace(by_subject=quota, limited=set(limits))
        access: Any = SimpleNamespace(by_id={})
        self.buckets = QuotaBuckets(QuotaRules(quotas, access), SENDS)
        self.buckets.share_with(lambda: nodes)
        self.shares = QuotaShares([self.buckets])
        self.shares.count_waiting(lambda: [(self.bucket(0), int(self.waiting))] if self.waiting >= 1 else [])

    def bucket(self, now_ms: int) -> Bucket:
        (bucket,) = self.buckets.of(0, "1.1.1.1", "T", now_ms)
        return bucket

    def run(self, now_ms: int) -> None:
        self.waiting = min(self.waiting + self.asked * STEP_MS / 1000, max(self.asked, 1.0))
        bucket = self.bucket(now_ms)
        while self.waiting >= 1 and bucket.opens_ms() <= now_ms:
            bucket.take(now_ms, 1, 100)
            self.passed += 1
            self.waiting -= 1


class Cluster:
    """Leaders of groups, of which the first one adds up."""

    def __init__(self, nodes: int, limits: dict[str, int]) -> None:
        self.nodes = [Node(name, nodes, limits) for name in range(1, nodes + 1)]
        self.now_ms = 1_000_000

    def run(self, seconds: float, *, told: bool = True) -> list[int]:
        """Returns how many messages each node has let through."""
        for node in self.nodes:
            node.passed = 0
        ends_ms = self.now_ms + int(seconds * 1000)
        while self.now_ms < ends_ms:
            for node in self.nodes:
                node.run(self.now_ms)
                if self.now_ms % 1000 == 160 * node.name % 1000:
                    look(node.shares, self.now_ms)
                    if told:
                        self.tell(node)
            self.now_ms += STEP_MS
        return [node.passed for node in self.nodes]

    def tell(self, node: Node) -> None:
        first = self.nodes[0]
        if node is not first:
            first.shares.heard(("group", node.name), node.shares.below(), self.now_ms)
            return
        first.shares.leads_all()
        for other in self.nodes[1:]:
            other.shares.told(first.shares.beside(("group", other.name), SENDS))


@each_row("asked", [(300, 300, 300), (1000, 50, 50), (150, 20, 20), (400, 5, 0), (30, 30, 30)])
def test_together_they_let_the_rate_through(asked: tuple[int, ...]) -> None:
    cluster = Cluster(3, {"send_messages": RATE})
    for node, number in zip(cluster.nodes, asked, strict=True):
        node.asked = number
    assert sum(cluster.run(3)) <= 5.5 * RATE, "one second's worth more, not one of each"
    passed = cluster.run(30)
    assert sum(passed) / 30 == pytest.approx(min(RATE, sum(asked)), rel=0.1)
    if sum(asked) < RATE:
        assert [round(number / 30) for number in passed] == pytest.approx(asked, abs=4)


def test_a_new_quota_lets_one_second_through_before_anybody_has_said_anything() -> None:
    cluster = Cluster(4, {"send_messages": RATE})
    for node in cluster.nodes:
        node.asked = 2_000
    assert sum(cluster.run(0.1)) <= 1.2 * RATE


def test_who_stops_asking_leaves_the_rate_to_others_and_gets_it_back() -> None:
    cluster = Cluster(2, {"send_messages": RATE})
    first, second = cluster.nodes
    first.asked = second.asked = 300
    cluster.run(10)
    second.asked = 0
    cluster.run(5)
    assert cluster.run(10)[0] / 10 == pytest.approx(RATE, rel=0.1)
    second.asked = 300
    cluster.run(8)
    passed = cluster.run(10)
    assert min(passed) >= 0.6 * max(passed), "nobody keeps what it had when it was alone"
    assert sum(passed) / 10 == pytest.approx(RATE, rel=0.1)


def test_nobody_gets_more_while_nobody_adds_up_and_a_dead_node_asks_for_nothing() -> None:
    cluster = Cluster(2, {"send_messages": RATE})
    first, second = cluster.nodes
    first.asked = second.asked = 300
    cluster.run(20)
    before = second.bucket(cluster.now_ms).share
    cluster.nodes = [second]
    cluster.run(10, told=False)
    assert second.bucket(cluster.now_ms).share <= before + 0.1
    first.asked, cluster.nodes = 300, [first]
    cluster.run(10, told=False)
    assert first.bucket(cluster.now_ms).share == 1.0
    second.shares.leads_all()
    look(second.shares, cluster.now_ms)
    assert second.bucket(cluster.now_ms).share == 1.0, "it leads, and nobody else says anything"


def test_everybody_may_send_one_message_a_second_and_something_of_a_rate_in_bytes() -> None:
    cluster = Cluster(5, {"send_messages": 1})
    for node in cluster.nodes:
        node.asked = 20
    cluster.run(5)
    assert min(cluster.run(10)) >= 9
    cluster = Cluster(2, {"send_bytes": 1_000_000})
    for node, asked in zip(cluster.nodes, (50_000, 1), strict=True):
        node.asked = asked
    cluster.run(5)
    assert cluster.run(20)[1] >= 15


def test_a_share_changes_the_rate_and_not_what_was_taken() -> None:
    node = Node(1, 1, {"send_messages": 100})
    bucket = node.bucket(0)
    for _ in range(100):
        bucket.take(0, 1, 10)
    assert bucket.opens_ms() == pytest.approx(10)
    bucket.begin(0.1)
    assert bucket.opens_ms() == pytest.approx(100)
    bucket.take(100, 1, 10)
    assert bucket.opens_ms() == pytest.approx(200)
    assert [bucket.room(now_ms) for now_ms in (200, 300, BURST_MS + 100)] == [1, 2, 10]


def test_a_look_at_many_owners_is_cut_into_short_steps() -> None:
    node = Node(1, 1, {"send_messages": 100}, "address=*")
    owners = 5_000
    for number in range(owners):
        (bucket,) = node.buckets.of(0, f"10.0.{number // 256}.{number % 256}", "T", 0)
        bucket.take(0, 1 + number % 7, 100)
    steps = [METER.units, *(METER.units for _ in node.shares.look(1_000))]
    longest = max(after - before for before, after in itertools.pairwise(steps))
    assert len(steps) > owners // STEP_UNITS
    assert longest <= 1.2 * STEP_UNITS
    assert len(node.shares.below()) == KEYS_MAX


def test_what_is_told_is_bounded_and_begins_with_what_is_asked_for_most() -> None:
    node = Node(1, 1, {"send_messages": 100})
    demands = {("topic=*", f"topic={number}", "send_messages"): float(number) for number in range(3 * KEYS_MAX)}
    node.shares.heard(("group", 2), demands, 0)
    told = node.shares.below()
    assert len(told) == KEYS_MAX
    assert min(told.values()) == 2 * KEYS_MAX
    assert not node.shares.beside(("group", 2), SENDS)
    assert node.shares.beside(("group", 3), ["pull_bytes"]) == {}
    node.shares.forget()
    assert not node.shares.below()
