"""Three whole nodes with a store: segments reach it whatever becomes of leaders, and none goes before it is there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.tier.object_names import parse
from cluster.tier.store.errors import Denied
from jepsen_like.sim.machines.tier_store import CALM, Weather
from raftlog.types import EntryType
from tests.support.sim_cluster import SimNode
from tests.support.tiered_cluster import FOLDER, Tiered

STORM = Weather(refused=0.2, lost=0.15, late=0.1, torn=0.2)


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    with ExitStack() as running:
        yield lambda *arguments, **named: running.enter_context(Tiered(*arguments, **named))


def test_sealed_segments_are_uploaded_and_verified_in_their_order(tiered: Callable[..., Tiered]) -> None:
    all_of_it = tiered()
    all_of_it.send(60)
    all_of_it.upload_all()
    all_of_it.check()
    assert all_of_it.sealed_end() > 3 << 14
    all_of_it.wait_published()
    all_of_it.sim.settle()
    all_of_it.sim.check_equal()


def test_the_next_leader_goes_on_where_the_last_one_was_killed(tiered: Callable[..., Tiered]) -> None:
    made = tiered(2)
    made.send(60)
    for _ in range(4):
        made.sim.loop.run_for(0.03)
        leader = made.sim.leader()
        leader.kill(power=False)
        made.sim.leader(besides=leader)
        leader.start()
        made.send(15)
    made.upload_all()
    made.check()
    names = [name.removeprefix(f"{FOLDER}/") for name in made.store.inner.objects]
    parts = [(found.folder, found.base) for found in map(parse, names) if found is not None]
    assert len(parts) == len(set(parts)), "a part was written under two names"


def test_a_store_that_fails_and_tears_holds_uploads_up_and_no_more(tiered: Callable[..., Tiered]) -> None:
    made = tiered(3, STORM)
    made.send(80)
    made.sim.loop.run_for(20)
    made.store.weather = CALM
    made.upload_all(300)
    made.check()
    assert made.store.torn, "the seed tore nothing"


def test_nothing_is_trimmed_that_the_tier_does_not_hold(tiered: Callable[..., Tiered]) -> None:
    made = tiered(4, **{"retention.bytes_max": 1 << 15, "retention.every_ms": 100, "retention.delete_when": ""})
    made.store.weather = Weather(refused=1.0)
    made.send(80)
    made.sim.loop.run_for(10)
    assert made.leader_state().trim_position == 0
    made.store.weather = CALM
    made.upload_all(120)
    state = made.sim.leader().state
    made.sim.loop.run_until(lambda: made.leader_state().trim_position > 0, 200, "a TRIM")
    assert state.trim_position <= state.tier.rows[-1].end


def test_a_seal_closes_the_last_segment_on_every_node(tiered: Callable[..., Tiered]) -> None:
    made = tiered(5)
    made.send(3)
    leader = made.sim.leader()
    end = leader.log.tail.end_position
    entry = leader.run(leader.running.keeping.tier.seal)
    made.sim.loop.run_until(lambda: leader.state.applied.index >= entry.index, 10)
    made.upload_all()
    made.check()
    assert made.verified() >= end
    made.sim.settle()
    assert {node.log.segment_at(0).end_position for node in made.sim.running} == {leader.state.tier.rows[0].end}
    rolled = leader.log.read_entries(entry.index, entry.index + 1, 1 << 20)[0]
    assert (rolled.type, rolled.flags) == (EntryType.COMMAND, 1)


def test_an_alarm_says_that_nothing_reaches_the_store(tiered: Callable[..., Tiered]) -> None:
    made = tiered(6)

    async def denied(name: str, data: object) -> None:
        raise Denied("the key is not known", "export AWS_ACCESS_KEY_ID")

    made.store.create = denied  # type: ignore[method-assign]
    made.send(40)
    leader: SimNode = made.sim.leader()
    made.sim.loop.run_until(lambda: leader.running.alarms.raised("tier_stuck"), 200, "the alarm")
    view = leader.running.keeping.tier.view("memory:")
    assert "the key is not known" in view.failing
    assert view.pending_bytes == leader.running.keeping.tier.pending_bytes > 0 < view.failures
    del made.store.create
    made.upload_all(120)
    assert not leader.running.alarms.raised("tier_stuck")


@pytest.mark.parametrize("is_new", [True, False])
def test_how_long_uploads_may_fail_can_be_configured(tiered: Callable[..., Tiered], is_new: bool) -> None:
    """It is configured at the start, or while the node runs."""
    made = tiered(6, **({"health.tier_stuck_ms": 2_000} if is_new else {}))

    async def denied(name: str, data: object) -> None:
        raise Denied("the key is not known", "export AWS_ACCESS_KEY_ID")

    made.store.create = denied  # type: ignore[method-assign]
    leader: SimNode = made.sim.leader()
    if not is_new:
        leader.running.keeping.tier.reload(2_000, 0)
    made.send(40)
    made.sim.loop.run_until(lambda: leader.running.alarms.raised("tier_stuck"), 30, "the alarm, in half the usual time")


def test_each_step_is_one_line_of_the_log(tiered: Callable[..., Tiered], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="cluster.tier")
    made = tiered(7)
    made.send(30)
    made.upload_all()
    steps = [(each.base, each.state) for each in map(fields_of, caplog.records) if hasattr(each, "state")]
    rows = made.leader_state().tier.rows
    assert steps == [(row.base, state) for row in rows for state in ("UPLOADING", "UPLOADED", "VERIFIED")]


def fields_of(record: logging.LogRecord) -> Any:
    """A record's extra fields are attributes that its type does not know."""
    return record


def test_a_leader_that_stops_leaves_the_upload_to_the_one_that_it_hands_over_to(
    tiered: Callable[..., Tiered],
) -> None:
    made = tiered(8)
    made.send(30)
    made.upload_all()
    leader = made.sim.leader()
    known = len(leader.state.tier.rows)
    made.store.weather = Weather(delay_s=(5.0, 6.0))
    made.send(30)
    made.sim.loop.run_until(lambda: len(leader.state.tier.rows) > known, 60, "an upload begins")
    term, process = leader.raw.term, leader.process
    assert process is not None
    leader.stop()
    made.sim.leader(besides=leader)
    made.store.weather = CALM
    made.upload_all()
    made.check()
    rows = made.leader_state().tier.rows
    assert rows[known].term > term == rows[0].term
    assert not process.alive
