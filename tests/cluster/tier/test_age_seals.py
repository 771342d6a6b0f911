"""The loss of every node costs a bounded time: a segment with an old message goes up although it is small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection
from cluster.config.ranges import dangers
from cluster.config.storage_sections import TierSection
from cluster.tier import segment_reads, tier_service, uploader
from jepsen_like.sim.machines.tier_store import CALM, Weather
from raftlog.types import EntryType
from statemachine.consuming.consumer_offsets import CommitOffsets
from tests.support.samples import sample
from tests.support.tiered_cluster import Tiered

pytestmark = pytest.mark.ci

MINUTE_S = 60
SOON = {"tier.seal_after_ms": 60_000}


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    with ExitStack() as running:
        yield lambda *arguments, **named: running.enter_context(Tiered(*arguments, **named))


def closed(made: Tiered) -> list[tuple[int, int]]:
    """The segments of the tier."""
    return [(row.base, row.end) for row in made.leader_state().tier.rows]


def window_s(made: Tiered) -> float:
    return made.sim.leader().running.keeping.tier.view("memory:").window_ms / 1000


def metric_s(made: Tiered) -> float:
    return max(
        sample(node.running.keeping.tier.part().metrics, "raftmq_tier_window_seconds") or 0 for node in made.sim.running
    )


def lacks_messages(made: Tiered) -> bool:
    log, begins = made.sim.leader().log, made.verified()
    first = next(index for index in range(log.first_index, log.tail.index + 1) if log.position_of(index) >= begins)
    entries = log.read_entries(first, log.tail.index + 1, 1 << 20)
    return any(entry.type == EntryType.MESSAGES for entry in entries)


def test_the_last_messages_of_a_quiet_cluster_reach_the_store_when_they_are_old_enough(
    tiered: Callable[..., Tiered],
) -> None:
    made = tiered(30, **SOON)
    made.send(3)
    made.sim.loop.run_for(MINUTE_S - 10)
    assert closed(made) == []
    assert 40 < window_s(made) < 60
    assert 40 < metric_s(made) < 60
    made.sim.loop.run_for(20)
    assert len(closed(made)) == 1
    assert not lacks_messages(made)
    made.wait_published()
    made.check()
    assert (window_s(made), metric_s(made)) == (0, 0)


def test_an_idle_cluster_closes_no_segment(tiered: Callable[..., Tiered]) -> None:
    """The tier's own steps are entries of the log, and so are topics and offsets: none of them closes one."""
    made = tiered(31, **SOON)
    made.send(3)
    made.sim.loop.run_for(2 * MINUTE_S)
    made.sim.propose(made.sim.leader(), CommitOffsets([("g", 1, 0, 1)]))
    made.sim.create_topic("later")
    made.sim.loop.run_for(10 * MINUTE_S)
    assert len(closed(made)) == 1
    assert window_s(made) == 0


def test_with_zero_only_full_segments_are_closed_and_the_key_counts_at_once(tiered: Callable[..., Tiered]) -> None:
    made = tiered(32, **{"tier.seal_after_ms": 0})
    made.send(3)
    made.sim.loop.run_for(5 * MINUTE_S)
    assert (closed(made), window_s(made) > 4 * MINUTE_S) == ([], True)
    for node in made.sim.running:
        node.running.keeping.tier.reload(60_000, 60_000)
    made.sim.loop.run_for(10)
    assert len(closed(made)) == 1


def test_while_the_store_is_away_the_window_grows_and_no_further_segment_is_closed(
    tiered: Callable[..., Tiered],
) -> None:
    made = tiered(33, **SOON)
    made.store.weather = Weather(refused=1.0)
    for _ in range(6):
        made.send(1)
        made.sim.loop.run_for(MINUTE_S)
    assert window_s(made) > 5 * MINUTE_S - 10
    sealed = made.sealed_end()
    made.send(1)
    made.sim.loop.run_for(5 * MINUTE_S)
    assert made.sealed_end() == sealed
    made.store.weather = CALM
    made.sim.loop.run_for(3 * MINUTE_S)
    assert (window_s(made), lacks_messages(made)) == (0, False)
    assert len(closed(made)) <= 2


def test_the_next_leader_closes_what_the_last_one_did_not(tiered: Callable[..., Tiered]) -> None:
    made = tiered(34, **SOON)
    made.send(3)
    made.sim.loop.run_for(MINUTE_S / 2)
    leader = made.sim.leader()
    leader.kill(power=False)
    made.sim.leader(besides=leader)
    made.sim.loop.run_for(MINUTE_S)
    assert len(closed(made)) == 1
    assert not lacks_messages(made)
    leader.start()
    made.sim.settle()


def test_a_segment_that_an_entry_closes_which_is_not_written_yet_is_not_closed_again() -> None:
    """The leader of the moment when it became full has proposed that entry already."""
    log: Any = SimpleNamespace(first_position=0, tail=SimpleNamespace(segment_base=0, index=7))
    state: Any = SimpleNamespace(tier=SimpleNamespace(verified_to=lambda _: 0), trim_position=0)
    ages = uploader.AgeSeals(state, log, cast(Any, None))
    ages._looked = segment_reads.Looked(100, 1000)
    for base, due in ((0, True), (100, True), (101, False)):
        tail: Any = SimpleNamespace(segment_base=base, index=8)
        assert ages.is_due(5000, 3000, tail) is due, base


def test_a_message_behind_many_other_entries_is_found_in_steps(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_service, "SegmentReads", partial(segment_reads.SegmentReads, read_bytes=256))
    monkeypatch.setattr(uploader, "LOOK_BYTES_MAX", 1024)
    made = tiered(35, **SOON)
    for queue in range(40):
        made.sim.propose(made.sim.leader(), CommitOffsets([("g" * 100, 1, queue % 2, 1)]))
    made.send(1)
    made.sim.loop.run_for(MINUTE_S + 10)
    assert len(closed(made)) == 1
    assert not lacks_messages(made)


def test_many_small_segments_a_year_are_a_choice_that_needs_force() -> None:
    def config(seal_after_ms: int) -> Config:
        return Config(node=NodeSection(id=1, data_dir="/data"), tier=TierSection(seal_after_ms=seal_after_ms))

    assert "tier.seal_after_ms" in dangers(config(60_000))
    assert "tier.seal_after_ms" not in dangers(config(600_000))
