"""A TRIM takes segments from everybody, and they go from the store, on three whole nodes: in order, under any
leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.tier.object_names import parse
from cluster.tier.store.errors import Denied
from jepsen_like.sim.machines.tier_store import CALM, Weather
from statemachine.tier import TierState
from tests.support.tiered_cluster import EVICTING, FOLDER, Tiered

SHORT: dict[str, Any] = {**EVICTING, "tier.bytes_max": 3 << 15, "tier.delete_delay_ms": 500, "tier.state_every_ms": 0}
"""The tier keeps five segments or six, with their index files."""
STORM = Weather(refused=0.2, lost=0.15, late=0.1, torn=0.2)


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    with ExitStack() as running:
        yield lambda *arguments, **named: running.enter_context(Tiered(*arguments, **named))


def bases(made: Tiered) -> list[int]:
    """Returns the beginnings of the segments of which the store has an object."""
    names = [parse(name.removeprefix(f"{FOLDER}/")) for name in made.store.inner.objects]
    return sorted({name.base for name in names if name is not None})


def wait_deleted(made: Tiered, limit_s: float = 120.0) -> None:
    """Waits until the store has the objects of what is kept, and no others."""

    def done() -> bool:
        state = made.leader_state()
        rows = state.tier.rows
        above = all(row.end > state.kept.position for row in rows)
        return state.kept.position > 0 and above and bases(made) == [row.base for row in rows]

    made.sim.loop.run_until(done, limit_s, "objects go")


def check_rest(made: Tiered) -> None:
    """Checks that all kept segments are whole, on all nodes alike, and that the manifest names nothing else."""
    made.wait_published()
    made.sim.settle()
    made.sim.check_equal()
    state = made.leader_state()
    going = [row for row in state.tier.rows if row.end <= state.kept.position]
    assert all(row.state is TierState.DELETING for row in going)  # the next ones became old meanwhile
    kept = state.tier.rows[len(going) :]
    assert state.kept.position == kept[0].base
    assert state.tier.verified_to(state.kept.position) >= state.trim_position
    assert {segment.base for segment in made.manifest().segments} <= {row.base for row in state.tier.rows}
    for row in kept:
        for part in row.parts:
            assert len(made.object(part.name)) == part.size


def test_what_the_tier_keeps_is_bounded_apart_from_what_the_nodes_keep(tiered: Callable[..., Tiered]) -> None:
    made = tiered(21, **SHORT)
    made.send(200)
    made.upload_all()
    wait_deleted(made)
    check_rest(made)
    state = made.leader_state()
    assert 0 < state.kept.position < state.trim_position
    assert sum(row.stored_bytes for row in state.kept_segments[1:]) <= SHORT["tier.bytes_max"]


def test_without_evict_a_trim_takes_the_objects_too(tiered: Callable[..., Tiered]) -> None:
    made = tiered(22, **{**SHORT, "tier.evict": False, "tier.bytes_max": 0})
    made.send(120)
    made.upload_all()
    wait_deleted(made)
    made.sim.settle()
    made.sim.check_equal()
    state = made.leader_state()
    assert state.kept.position == state.trim_position > 0


@pytest.mark.slow
def test_age_counts_in_log_time(tiered: Callable[..., Tiered]) -> None:
    made = tiered(23, **{**SHORT, "tier.bytes_max": 0, "tier.retention_ms": 20_000})
    made.send(100)
    made.upload_all()
    made.sim.loop.run_for(5)
    assert made.leader_state().kept.position == 0
    made.sim.loop.run_for(30)
    made.send(2)
    wait_deleted(made)
    check_rest(made)
    assert made.leader_state().kept.position == made.leader_state().trim_position


def test_the_next_leader_goes_on_deleting(tiered: Callable[..., Tiered]) -> None:
    made = tiered(24, **SHORT)
    for _ in range(5):
        made.send(50)
        made.sim.loop.run_for(0.3)
        leader = made.sim.leader()
        leader.kill(power=True)
        made.sim.leader(besides=leader)
        leader.start()
    made.upload_all(120)
    wait_deleted(made)
    check_rest(made)


@pytest.mark.slow
def test_a_store_that_fails_delays_deletions_and_no_more(tiered: Callable[..., Tiered]) -> None:
    made = tiered(25, STORM, **SHORT)
    made.send(150)
    made.sim.loop.run_for(20)
    made.store.weather = CALM
    made.upload_all(300)

    def no_row_is_left() -> bool:
        state = made.leader_state()
        return state.kept.position > 0 and all(row.end > state.kept.position for row in state.tier.rows)

    made.sim.loop.run_until(no_row_is_left, 120, "rows go")
    state = made.leader_state()
    named = {f"{FOLDER}/{part.name}" for row in state.tier.rows for part in row.parts}
    assert named <= made.store.inner.objects.keys()


@pytest.mark.slow
def test_objects_that_cannot_go_raise_an_alarm_and_hold_up_no_upload(tiered: Callable[..., Tiered]) -> None:
    made = tiered(26, **SHORT)

    delete = made.store.delete

    async def denied(name: str) -> None:
        if "/log/" in name:
            raise Denied("the object is locked", "wait until its retention ends")
        await delete(name)

    made.store.delete = denied  # type: ignore[method-assign]
    made.send(150)
    made.upload_all()
    leader = made.sim.leader()
    made.sim.loop.run_until(lambda: leader.running.alarms.raised("tier_deletes_stuck"), 300, "the alarm")
    made.send(50)
    made.upload_all()
    del made.store.delete
    wait_deleted(made)
    assert not leader.running.alarms.raised("tier_deletes_stuck")


@pytest.mark.slow
def test_what_a_restore_needs_stays(tiered: Callable[..., Tiered]) -> None:
    """The log from the newest copy of the state on: without it, the copy is of no use."""
    made = tiered(27, **{**SHORT, "tier.evict": False, "tier.bytes_max": 0, "tier.state_every_ms": 5000})
    for _ in range(6):
        made.send(50)
        made.upload_all()
        made.sim.loop.run_for(2)
        leader = made.sim.leader()
        copier = leader.running.keeping.tier._copier
        copies = [] if copier is None else copier.copies
        begins = min(bases(made), default=0)
        assert begins <= max((copy.position for copy in copies), default=0)
    assert begins > 0, "something went"
