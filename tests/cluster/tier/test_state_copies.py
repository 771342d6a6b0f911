"""Copies of the state in the tier: written by the leader, found again by the next, and the old ones removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from google_crc32c import value as crc32c

from cluster.tier import stored_files
from cluster.tier.state_copies import state_copier
from cluster.tier.state_copies.state_copier import StateCopy, garbage, is_description, kept, pending
from jepsen_like.sim.machines.tier_store import CALM, Weather
from tests.support.sim_cluster import SELDOM_S
from tests.support.tiered_cluster import FOLDER, Tiered

EVERY_MS = 4000


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    with ExitStack() as running:
        yield lambda *arguments, **named: running.enter_context(
            Tiered(*arguments, **{"tier.state_every_ms": EVERY_MS} | named)
        )


def copies_in(made: Tiered) -> list[StateCopy]:
    prefix = f"{FOLDER}/"
    names = sorted(name.removeprefix(prefix) for name in made.store.inner.objects)
    return [stored_files.decode(made.object(name), StateCopy) for name in names if is_description(name)]


def parts_in(made: Tiered) -> set[str]:
    names = (name.removeprefix(f"{FOLDER}/") for name in made.store.inner.objects)
    return {name for name in names if name.startswith("state/") and name.endswith(".part")}


def check(copy: StateCopy, made: Tiered) -> None:
    """Every part is there and is what the description says."""
    for file in copy.files:
        assert sum(part.size for part in file.parts) == file.size
        for part in file.parts:
            assert crc32c(made.object(part.name)) == part.crc32c


def wait_for(made: Tiered, number: int, limit_s: float = 120) -> None:
    made.sim.loop.run_until(lambda: len(copies_in(made)) >= number, limit_s, f"{number} copies", every_s=SELDOM_S)


def wait_for_another(made: Tiered, seen: set[str]) -> None:
    made.sim.loop.run_until(
        lambda: {copy.name for copy in copies_in(made)} - seen, 200, "another copy", every_s=SELDOM_S
    )


def test_the_leader_copies_the_state_and_removes_old_copies(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_copier, "KEPT", 2)
    made = tiered(1)
    seen: set[str] = set()
    for _ in range(4):
        made.send(40)
        made.upload_all()
        wait_for_another(made, seen)
        made.sim.loop.run_for(0.5)
        seen |= {copy.name for copy in copies_in(made)}
        for copy in copies_in(made):
            check(copy, made)
    left = copies_in(made)
    assert (len(seen), len(left)) == (4, 3), "two that can be used, and the newest, which waits for the tier"
    oldest = left[0].index
    named = {part.name for copy in left for file in copy.files for part in file.parts}
    assert {name for name in parts_in(made) if state_copier.index_of(name) < oldest} <= named  # type: ignore[operator]
    view = made.sim.leader().running.keeping.tier.view("memory:")
    assert view.state_copy == left[-1].index
    assert made.leader_state().applied.index >= left[-1].index > 0


@pytest.mark.slow
def test_the_next_leader_goes_on_with_what_it_finds(tiered: Callable[..., Tiered]) -> None:
    made = tiered(2)
    made.send(40)
    made.upload_all()
    wait_for(made, 1)
    leader = made.sim.leader()
    leader.kill(power=False)
    made.sim.leader(besides=leader)
    leader.start()
    made.send(60)
    made.upload_all()
    wait_for(made, 2)
    for copy in copies_in(made):
        check(copy, made)


@pytest.mark.slow
def test_one_copy_at_most_waits_for_the_tier(tiered: Callable[..., Tiered]) -> None:
    made = tiered(3)
    made.send(40)
    made.upload_all()
    for _ in range(3):
        made.send(1)
        made.sim.loop.run_for(61)
    assert copies_in(made)
    assert len(pending(copies_in(made), made.verified())) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 43))
def test_a_bad_store_and_new_leaders_leave_whole_copies(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also while removals of a leader that was killed arrive late."""
    monkeypatch.setattr(state_copier, "KEPT", 1)
    monkeypatch.setattr("cluster.tier.stored_files.PART_BYTES", 2048)  # so that some do not change
    made = tiered(seed, Weather(refused=0.05, lost=0.1, late=0.15, torn=0.05, late_s=(0.5, 90.0)))
    for _ in range(5):
        made.send(30)
        made.sim.loop.run_for(62)
        leader = made.sim.leader()
        leader.kill(power=False)
        made.sim.leader(besides=leader)
        leader.start()
        check_all(made)
    made.store.weather = CALM
    made.send(40)
    made.upload_all(300)
    made.sim.loop.run_for(100)
    copies = check_all(made)
    taken = [part.name for copy in copies for part in copy.files[0].parts if not is_of(copy, part.name)]
    assert taken, "no part was taken over"


def is_of(copy: StateCopy, name: str) -> bool:
    return state_copier.index_of(name) == copy.index


def check_all(made: Tiered) -> list[StateCopy]:
    """Every copy but the oldest one, which may just be going, is whole."""
    prefix = f"{FOLDER}/"
    names = sorted(name.removeprefix(prefix) for name in made.store.inner.objects if name not in made.store.torn)
    copies = [stored_files.decode(made.object(name), StateCopy) for name in names if is_description(name)]
    for copy in copies[1:] if len(copies) > 1 else copies:
        check(copy, made)
    return copies


@pytest.mark.slow
def test_none_is_written_where_it_is_switched_off(tiered: Callable[..., Tiered]) -> None:
    made = tiered(5, **{"tier.state_every_ms": 0})
    made.send(60)
    made.upload_all()
    made.sim.loop.run_for(60)
    assert copies_in(made) == []


@pytest.mark.slow
def test_a_checkpoint_that_rotted_on_the_disk_does_not_leave_it(tiered: Callable[..., Tiered]) -> None:
    made = tiered(6, **{"tier.state_every_ms": 90_000})
    made.send(40)
    made.upload_all()
    made.sim.loop.run_for(70)
    for node in made.sim.running:
        checkpoints = node.running.storage.checkpointer.checkpoints
        for checkpoint in checkpoints.all():
            for each in checkpoint.manifest.files:
                file = node.fs.open(checkpoint.path / each.name)
                file.pwritev([bytes([file.pread(1, each.size // 2)[0] ^ 1])], each.size // 2)
    tier = made.sim.leader().running.keeping.tier
    made.sim.loop.run_until(lambda: "is not what its manifest says" in tier.view("").failing, 200, "a refusal")
    assert copies_in(made) == []


def copy_at(index: int, position: int, *parts: str) -> StateCopy:
    stored = [stored_files.StoredPart(name, 1, "", 0) for name in parts]
    facts: dict[str, Any] = dict.fromkeys(("term", "header_crc", "timestamp_ms", "made_ms", "node", "group_id"), 1)
    return StateCopy(
        cluster_id="c",
        checkpoint=f"{index:020d}-1-00000000",
        index=index,
        position=position,
        cluster_name="",
        broker_name="",
        segment_size=1,
        log_begins=[],
        genesis="",
        origin=[],
        files=[stored_files.StoredFile("f", len(stored), stored)],
        versions={},
        **facts,
    )


def test_what_stays_and_what_goes() -> None:
    def part(index: int) -> str:
        return f"state/{index:020d}-{'a' * 32}.part"

    copies = [copy_at(index, 100 * index, part(index), part(max(1, index - 1))) for index in range(1, 13)]
    stay = kept(copies, 1100)
    assert [copy.index for copy in stay] == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [copy.index for copy in pending(copies, 1100)] == [12]
    listed = [copy.name for copy in copies] + [part(index) for index in range(1, 13)] + ["state/strange", "log/1"]
    gone = garbage(listed, stay)
    assert gone == [copies[0].name, copies[1].name, copies[2].name, part(1), part(2)]  # 3 is named by the copy at 4
    assert garbage(listed, []) == []
