"""The stories of open loads on pretended answers: their bounds can break, and their plot says which run is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from jepsen_like.live.stories import story_nearly_full
from jepsen_like.live.stories.story_report_004 import broken_bounds, draw
from raftmq.commands.bench_open import OpenReport, OpenRun, Shape
from raftmq.commands.open_arrivals import Second
from tests.support.rows import each_row

GOOD: dict[str, Any] = {"unknown": 0, "refused": {"2": 9}, "stored_per_second": 7_000.0, "p99_ms": 90.0}


@each_row(
    ("change", "broken"),
    [
        ({}, []),
        ({"unknown": 1}, ["unknown outcomes"]),
        ({"stored_per_second": 6_299.0}, ["goodput"]),
        ({"p99_ms": 100.1}, ["p99"]),
        ({"unknown": 7, "p99_ms": 3_000.0}, ["unknown outcomes", "p99"]),
    ],
)
def test_each_bound_of_the_surge_can_break(change: dict[str, Any], broken: list[str]) -> None:
    assert broken_bounds(GOOD | change, 7_000.0, 100.0) == broken


def report(rate: float) -> OpenReport:
    seconds = [Second(100, 0, 90, 10, 2.0, 9.0), Second(100, 0, 100, 0, 2.0, 9.0)]
    run = OpenRun(0.0, rate, 200, 190, {"2": 10}, 0, 0, 0.1, 95.0, 2.0, 5.0, 9.0, 9.5, 9.9, seconds)
    return OpenReport(1, Shape(), 0.0, (0.1, 0.1, 0.1), [run])


def test_the_plot_names_the_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(tmp_path / "surge.svg", msgspec.to_builtins(report(8_000.0)), msgspec.to_builtins(report(8_001.0)))
    drawn = (tmp_path / "surge.svg").read_text(encoding="utf-8")
    assert drawn.index("8,000 messages/s, with admission") < drawn.index("8,001 messages/s, without admission")


class Pretended:
    """A scene that notes what was broken and missed."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.missed: list[str] = []
        self.measured: dict[str, Any] = {}

    def demand(self, holds: bool, what: str) -> None:
        self.broken += [what] * (not holds)

    def gate(self, name: str, value: float, wanted: float, *, at_most: bool = False) -> None:
        self.missed += [name] * (value > wanted if at_most else value < wanted)


STEADY = GOOD | {
    "rate": 5_600.0,
    "arrivals": 1_000,
    "stored": 1_000,
    "refused": {},
    "late": 1,
    "p50_ms": 9.0,
    "busy": 0.5,
}


@each_row(
    ("change", "broken", "missed"),
    [
        ({}, [], []),
        ({"refused": {"2": 1}}, ["1 sends were refused"], []),
        ({"unknown": 2}, ["2 sends have an unknown outcome"], []),
        ({"stored": 989}, [], ["goodput, of what arrives"]),
        ({"late": 11}, [], ["arrivals that the generator sent late"]),
    ],
)
def test_one_refused_send_breaks_a_steady_load(change: dict[str, Any], broken: list[str], missed: list[str]) -> None:
    scene: Any = Pretended()
    story_nearly_full.judge(scene, {"capacity": 7_000.0, "capacity_busy": 0.3, "runs": [STEADY | change]})
    assert (scene.broken, scene.missed) == (broken, missed)
