"""The longest turn according to a node's metrics, read as the node writes them."""

from __future__ import annotations

from cluster.runtime.turns.turn_watch import LongTurn, TurnMetrics
from jepsen_like.live.probes.long_turns import turns_of
from tests.support.samples import text_of


def test_the_longest_turn_and_what_the_meter_does_not_explain() -> None:
    metrics = TurnMetrics()
    assert str(turns_of(text_of(metrics))) == "below 20 ms of CPU"
    for what, cpu_ms, units in (("cluster.a", 30.0, 30_000), ("cluster.b", 310.0, 5), ("cluster.b", 25.0, 5)):
        metrics.note(LongTurn(cpu_ms, cpu_ms, units, what))
    turns = turns_of(text_of(metrics))
    assert str(turns) == "310 ms of CPU in cluster.b; not charged to the meter: cluster.b"
    assert turns.unexplained == {"cluster.b": 2}
