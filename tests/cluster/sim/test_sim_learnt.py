"""Learnt limits: in an overload they decide who is cut first, and at no other time does anybody notice them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from raftmq_wire.codes import ResponseCode
from raftmq_wire.learnt_file import LearntFile, LearntOrigin, TopicLimits
from statemachine.access.learnt_limits import LearntHead, LearntMode, PutLearnt, SetLearnt, import_of
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import LEVEL
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

BUSY = ResponseCode.SYSTEM_BUSY
SLOWER = 8.0
"""The factor by which all disks are slower: an entry of 16 sends takes some 20 ms."""
USUAL = {"sale": 40, "large": 780, "small": 60}
"""Sends a second that the topics usually get: three quarters of what the log takes, and `large` more than a third."""
SALE = {**USUAL, "sale": 2_000}
HOURS = 24
Sim = Callable[..., SimCluster]


@pytest.fixture
def sim_with() -> Iterator[Sim]:
    made: list[SimCluster] = []

    def make(limits: Mapping[str, float], mode: str = "on", ends_ms: int = 1 << 60, seed: int = 61) -> SimCluster:
        config: dict[str, Any] = {
            "limits.batch_messages_max": 16,
            "flow.house_bytes_min": 4096,
            "send.deadline_ms": 20_000,
        }
        sim = SimCluster(seed, **config).__enter__()
        made.append(sim)
        sim.propose(sim.leader(), Finalize(LEVEL))
        for topic in USUAL:
            sim.create_topic(topic)
        learn(sim, limits, mode, ends_ms)
        sim.settle()
        for node in sim.nodes.values():
            node.disk_factor = SLOWER
        return sim

    yield make
    for sim in made:
        sim.__exit__(None, None, None)


def learn(sim: SimCluster, limits: Mapping[str, float], mode: str, ends_ms: int = 1 << 60) -> None:
    if not limits:
        return
    origin = LearntOrigin(cluster="c", made_ms=1, first_ms=1, last_ms=1, expires_ms=1)
    topics = {topic: TopicLimits([max(1, int(rate))] * HOURS, [0] * HOURS) for topic, rate in limits.items()}
    digest = LearntFile(origin, topics).digest
    rows = [(topic, each.messages, each.bytes) for topic, each in topics.items()]
    sim.propose(sim.leader(), PutLearnt(import_of(digest), rows))
    head = LearntHead(digest, len(rows), LearntMode(mode), 1, 1, 1, ends_ms, 1, "ann")
    sim.propose(sim.leader(), SetLearnt(head.row()))
    sim.settle()
    sim.loop.run_for(0.3)


class OpenLoops:
    """Sends to each topic that come by a schedule at a node, each topic by a client at an address of its own, and the
    time that each took."""

    def __init__(self, sim: SimCluster, node: SimNode) -> None:
        self.sim = sim
        self.paths = {topic: node.connect() for topic in USUAL}
        self.sent: dict[int, tuple[str, float]] = {}
        self.took_s: dict[int, float] = {}

    def run(self, seconds: float, rates: Mapping[str, int]) -> range:
        """Returns the numbers of the sends."""
        begin, owed = len(self.sent) + 1, Counter[str]()
        for _ in range(int(seconds * 100)):
            for topic, rate in rates.items():
                owed[topic] += rate
                while owed[topic] >= 100:
                    owed[topic] -= 100
                    number = len(self.sent) + 1
                    self.sent[number] = topic, self.sim.loop.now
                    self.paths[topic].ask(send_frame(number, topic, b"%d-" % number + b"x" * 200))
            self.sim.loop.run_for(0.01)
            self.look()
        return range(begin, len(self.sent) + 1)

    def look(self) -> None:
        for path in self.paths.values():
            for number in list(path.replies):
                if number not in self.took_s:
                    self.took_s[number] = self.sim.loop.now - self.sent[number][1]

    def settle(self) -> None:
        self.sim.loop.run_until(lambda: sum(len(path.replies) for path in self.paths.values()) == len(self.sent), 30)
        self.look()

    def code(self, number: int) -> int:
        (code,) = codes(self.paths[self.sent[number][0]], number)
        return code

    def figures(self, numbers: range) -> dict[str, tuple[float, float]]:
        """Returns topic -> (share that was refused, p99 of what was stored in ms)."""
        self.settle()
        found: dict[str, tuple[float, float]] = {}
        for topic in USUAL:
            own = [number for number in numbers if self.sent[number][0] == topic]
            took = sorted(self.took_s[number] for number in own if self.code(number) == 0)
            refused = sum(self.code(number) == BUSY for number in own)
            assert refused + len(took) == len(own), "there is no other answer"
            found[topic] = refused / len(own), round(1000 * took[int(0.99 * len(took))])
        return found


def sale(sim: SimCluster, limits: str) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
    """Returns the figures of usual traffic, and those of a sale: from two seconds after its begin on."""
    loops = OpenLoops(sim, sim.leader())
    usual = loops.figures(loops.run(3, USUAL))
    loops.run(2, SALE)
    found = loops.figures(loops.run(3, SALE))
    print(f"{limits}: (refused, p99 in ms) usually {usual}, in the sale {found}")  # noqa: T201 - the figures
    assert all(refused == 0 for refused, _ in usual.values()), "a limit alone refuses nothing"
    assert sim.leader().refused["overload"] == sum(loops.code(number) == BUSY for number in loops.sent)
    sim.settle()
    sim.check_equal()
    assert not any(node.proposals.gate.left() for node in sim.running)
    return usual, found


def times(factor: float) -> dict[str, float]:
    return {topic: factor * rate for topic, rate in USUAL.items()}


def test_on_a_sale_day_those_who_send_as_usual_notice_little(sim_with: Sim) -> None:
    sim = sim_with(times(1.5))
    usual, found = sale(sim, "on")
    for topic in ("large", "small"):
        assert found[topic][0] == 0
        assert found[topic][1] <= 2 * usual[topic][1]
    assert found["sale"][0] > 0.8
    uses = {use.topic: use for use in sim.leader().proposals.flow.learnt.all()}
    assert uses["sale"].cut > 0.8 * sim.leader().refused["overload"] > 1_000
    assert uses["sale"].over > 1_000
    assert uses["large"].over == uses["small"].over == 0
    remarks = [remark for path in sim.leader().paths for ((_, remark, _),) in path.replies.values()]
    assert sum("and this topic gets more than it usually does" in each for each in remarks) == uses["sale"].cut


@pytest.mark.parametrize(
    ("name", "factor", "mode", "ends_ms"),
    [
        pytest.param("none", 0, "on", 0, marks=pytest.mark.ci),
        pytest.param("shadow", 1.5, "shadow", 1 << 60, marks=pytest.mark.ci),
        pytest.param("expired", 1.5, "on", 1, marks=pytest.mark.ci),
        pytest.param("100 times too high", 150, "on", 1 << 60, marks=pytest.mark.ci),
        ("100 times too low", 0.015, "on", 1 << 60),
    ],
)
def test_limits_that_do_not_count_change_nothing(
    sim_with: Sim, name: str, factor: float, mode: str, ends_ms: int
) -> None:
    """All topics are over theirs, or none: shares are equal, so who usually gets more than one is refused the rest."""
    _, found = sale(sim_with(times(factor) if factor else {}, mode, ends_ms), name)
    assert found["large"][0] > 0.1
    assert found["sale"][0] > 0.7
    assert found["small"][0] == 0


def test_limits_that_are_wrong_for_some_change_who_waits(sim_with: Sim) -> None:
    """Of the large topic 100 times too low, of the others 100 times too high: in a sale the large one is cut first, and
    even it gets something; before it, nobody notices."""
    limits = {"sale": 100 * SALE["sale"], "large": USUAL["large"] / 100, "small": 100 * USUAL["small"]}
    sim = sim_with(limits)
    _, found = sale(sim, "100 times too low and high")
    assert found["large"][0] > 0.5
    assert found["large"][0] < 0.99
    assert found["small"][0] == 0


def test_when_the_overload_ends_nobody_is_demoted(sim_with: Sim) -> None:
    sim = sim_with(times(1.5))
    loops = OpenLoops(sim, sim.leader())
    learnt = sim.leader().proposals.flow.learnt
    loops.run(4, SALE)
    assert len(learnt.demoted) == 1
    loops.run(4, USUAL)
    assert not learnt.demoted
    loops.run(0.3, {"sale": 500})
    assert learnt.of("sale") is not None
    assert not learnt.demoted, "it is over its limit, and the log takes it"


def test_a_new_leader_begins_with_full_buckets_and_limits_go(sim_with: Sim) -> None:
    sim = sim_with(times(1.5))
    old = sim.leader()
    loops = OpenLoops(sim, old)
    loops.run(4, SALE)
    old.transfer(sim.followers()[0].node_id)
    sim.loop.run_for(2)
    new = sim.leader()
    assert new is not old
    assert new.proposals.flow.learnt.active
    assert list(new.proposals.flow.learnt.all()) == [] or not new.proposals.flow.learnt.demoted
    sim.propose(new, SetLearnt(None))
    sim.settle()
    sim.loop.run_for(0.3)
    assert (new.proposals.flow.learnt.active, new.proposals.flow.learnt.limits) == (False, None)
