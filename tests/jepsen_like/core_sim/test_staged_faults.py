"""Plays: each is staged by some seed and reaches its end, and staging one changes nothing about what is judged."""

from __future__ import annotations

import pytest

from jepsen_like.core_sim.run import run_seed
from jepsen_like.core_sim.run_options import PLAYS, Knobs, draw
from tests.support.rows import each_row

SEEDS = range(12)


def staged(seed: int, play: str) -> Knobs:
    """Options under which `play` can get through: little else in its way."""
    knobs = draw(seed)
    raft = knobs.raft | {"append_bytes_max": 1, "pre_vote": play != "stale_vote", "check_quorum": False}
    return knobs._replace(play=play, raft=raft, nodes=3, triggers=(), faults=("slow_link",), fault_gap_us=150_000)


@each_row("play", PLAYS)
def test_a_play_reaches_its_end_and_the_product_stands_it(play: str) -> None:
    for seed in SEEDS:
        verdict = run_seed(seed, knobs=staged(seed, play))
        assert verdict.valid, (seed, verdict.checker, verdict.detail)
        if verdict.seen[f"play {play}"]:
            return
    pytest.fail(f"{play} is never played to its end in {SEEDS}")


def test_every_play_is_drawn() -> None:
    drawn = {draw(seed).play for seed in range(200)}
    assert drawn == {None, *PLAYS}
