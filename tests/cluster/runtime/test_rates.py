"""Messages per second as mqadmin shows them."""

from __future__ import annotations

from cluster.runtime.figures.counters import SAMPLES_MAX, Rates, Totals


class Node:
    """Takes and gives what a test says, second by second."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.totals = Totals(0, 0)
        self.rates = Rates(lambda: self.totals)
        self.rates.tick(self.now_ms)

    def run(self, seconds: int, taken: int, given: int = 0) -> None:
        for _ in range(seconds):
            self.totals = Totals(self.totals.taken + taken, self.totals.given + given)
            for _ in range(20):  # the timer of a node
                self.now_ms += 50
                self.rates.tick(self.now_ms)


def test_nothing_is_known_at_first() -> None:
    assert Rates(lambda: Totals(7, 7)).taken() == [0.0, 0.0, 0.0]
    assert Node().rates.given() == [0.0, 0.0, 0.0]


def test_each_window_sees_its_own_time() -> None:
    node = Node()
    node.run(600, taken=10, given=1)
    assert node.rates.taken() == [10.0, 10.0, 10.0]
    node.run(10, taken=70)
    assert node.rates.taken() == [70.0, 20.0, 11.0]
    assert node.rates.given() == [0.0, 50 / 60, 590 / 600]


def test_a_young_node_counts_what_it_has_seen() -> None:
    node = Node()
    node.run(4, taken=8)
    assert node.rates.taken() == [8.0, 8.0, 8.0]


def test_samples_are_bounded() -> None:
    node = Node()
    node.run(3 * SAMPLES_MAX, taken=1)
    assert node.rates.samples <= 2 * SAMPLES_MAX
    assert node.rates.taken() == [1.0, 1.0, 1.0]
