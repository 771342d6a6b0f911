"""Scrubs of the tier: what is found, what is repaired, and what is never removed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from cluster.tier.fetch.errors import DamagedError
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.tier_log import TierLog
from cluster.tier.scrub.scrub_service import TierScrubs
from cluster.tier.scrub.scrubber import (
    LeaderChangedError,
    PartSource,
    ScrubOptions,
    ScrubReport,
    TierScrubber,
    log_bytes,
    survey,
)
from cluster.tier.store.errors import Unreachable
from cluster.tier.store.object_store import ObjectInfo
from cluster.tier.tier_assembly import LineageStore
from statemachine.tier import TierPart, TierSegment, TierState
from tests.support.tier_kit import FOLDER, TierKit

NOW_MS = 10_000_000_000
VERIFY, REPAIR, SWEEP = ScrubOptions(), ScrubOptions(repairs=True), ScrubOptions(reads=False, sweeps=True)
QUEUES = [(1, 0), (2, 0)]


@pytest.fixture
def kit() -> TierKit:
    kit = TierKit(41, parts=3)
    for _ in range(4):
        kit.segment(QUEUES, 40)
    return kit


def local_log(kit: TierKit) -> PartSource:
    """This node's log, as it was when the objects were written."""
    intact = {name.removeprefix(f"{FOLDER}/"): data for name, data in kit.store.objects.items()}

    async def make(row: TierSegment, part: TierPart) -> bytes | None:
        whole = b"".join(intact[each.name] for each in row.parts if each.name.startswith("log/"))

        async def piece(base: int, end: int) -> memoryview:
            return memoryview(whole)[base - row.base : end - row.base]

        return await log_bytes(piece, row, part)

    return PartSource("the log of this node", make)


def scrubber(kit: TierKit, *sources: PartSource, leads: Callable[[], bool] = lambda: True) -> TierScrubber:
    return TierScrubber(kit.store, FOLDER, rows=lambda: kit.rows, wall_ms=lambda: NOW_MS, leads=leads, sources=sources)


def logs(kit: TierKit) -> list[str]:
    return sorted(name for name in kit.store.objects if "/log/" in name)


async def test_of_the_newest_segments_alone_contents_are_read(kit: TierKit) -> None:
    wishes = VERIFY._replace(newest=1)
    names = [f"{FOLDER}/{row.parts[0].name}" for row in kit.rows]
    for name in names:
        kit.store.overwrite(name, bytes(len(kit.store.objects[name])))
    report = await scrubber(kit).scrub(wishes)
    read_bytes = kit.rows[-1].stored_bytes + kit.rows[-1].parts[0].size  # what is damaged is read twice
    assert (report.segments, report.bad, report.read_bytes) == (4, 1, read_bytes)
    assert names[-1].endswith(report.findings[0].partition(":")[0])
    kit.store.overwrite(names[0], b"cut")
    assert (await scrubber(kit).scrub(wishes)).bad == 2
    assert (await scrubber(kit).scrub(VERIFY._replace(newest=5))).bad == 4


async def test_a_tier_that_is_right_has_no_findings(kit: TierKit) -> None:
    kit.store.overwrite(f"{FOLDER}/manifest/HEAD", b"{}")
    report = await scrubber(kit).scrub(VERIFY)
    size = sum(row.stored_bytes for row in kit.rows)
    assert report == ScrubReport(4, 16, size, 0, 0, 0, 0, 0, 0, [])


async def test_damage_in_the_folder_of_an_ancestor_is_named_there(kit: TierKit) -> None:
    """Below the id of the restored cluster is nothing that a person could look at."""
    name = logs(kit)[0].removeprefix(f"{FOLDER}/")
    kit.store.objects[f"a/{name}"] = kit.store.objects.pop(f"{FOLDER}/{name}")
    kit.store.overwrite(f"a/{name}", bytes(len(kit.store.objects[f"a/{name}"])))
    store = LineageStore(kit.store, FOLDER, ["a"])
    mine = TierScrubber(
        store, FOLDER, rows=lambda: kit.rows, wall_ms=lambda: NOW_MS, leads=lambda: True, where=store.where
    )
    report = await mine.scrub(VERIFY)
    assert report.findings == [f"a/{name}: {report.findings[0].partition(': ')[2]}"]
    reads = ObjectReads(store, None, where=store.where)
    log = TierLog(reads, lambda: tuple(kit.rows), FOLDER)
    first = kit.messages[0]
    with pytest.raises(DamagedError, match=f"does not match its CRC in a/{name}"):
        await log.messages(first.packed())


async def test_flips_and_cuts_at_random_places_are_found_and_repaired(kit: TierKit) -> None:
    chance, source = random.Random(6), local_log(kit)
    intact = dict(kit.store.objects)
    for _ in range(120):
        kit.store.objects = dict(intact)
        name = chance.choice(logs(kit))
        data = bytearray(intact[name])
        kind = chance.randrange(3)
        if kind == 0:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[chance.randrange(len(data)) :]
        if kind == 2:
            await kit.store.delete(name)
        else:
            kit.store.overwrite(name, data)
        found = await scrubber(kit).scrub(VERIFY)
        assert (found.bad, found.unrepaired) == (1, 1)
        assert found.findings[0].startswith(name.removeprefix(f"{FOLDER}/"))
        repaired = await scrubber(kit, source).scrub(REPAIR)
        assert (repaired.bad, repaired.repaired, kit.store.objects) == (1, 1, intact)


async def test_sizes_are_compared_without_reading(kit: TierKit) -> None:
    name = logs(kit)[0]
    kit.store.overwrite(name, kit.store.objects[name][:-1])
    report = await scrubber(kit).scrub(ScrubOptions(reads=False))
    assert (report.bad, report.read_bytes, kit.store.ranges) == (1, 0, [])


async def test_a_listing_that_shows_nothing_is_not_believed(kit: TierKit) -> None:
    kit.store.hides = True
    report = await scrubber(kit, local_log(kit)).scrub(ScrubOptions(reads=False, repairs=True, sweeps=True))
    assert (report.bad, report.repaired, report.swept, report.objects) == (0, 0, 0, 16)


async def test_a_source_with_other_bytes_repairs_nothing(kit: TierKit) -> None:
    name = logs(kit)[0]
    damaged = bytes(len(kit.store.objects[name]))
    kit.store.overwrite(name, damaged)

    async def other(row: TierSegment, part: TierPart) -> bytes | None:
        return bytes(part.size - 1) + b"1"

    report = await scrubber(kit, PartSource("elsewhere", other)).scrub(REPAIR)
    assert (report.bad, report.repaired, kit.store.objects[name]) == (1, 0, damaged)


async def test_a_deposed_leader_changes_nothing(kit: TierKit) -> None:
    source = local_log(kit)
    orphan = f"{FOLDER}/log/{kit.rows[1].base:020d}-{kit.rows[1].end:020d}.{'0' * 16}.seg"
    kit.store.overwrite(orphan, b"1")
    kit.store.overwrite(logs(kit)[-1], b"1")
    before = dict(kit.store.objects)
    for wishes in (REPAIR, SWEEP):
        with pytest.raises(LeaderChangedError):
            await scrubber(kit, source, leads=lambda: False).scrub(wishes)
        assert kit.store.objects == before


async def test_the_sweep_takes_what_no_row_will_ever_name(kit: TierKit) -> None:
    verified, open_row = kit.rows[1], kit.rows[-1]
    kit.rows[-1] = open_row._replace(state=TierState.UPLOADED)
    taken = {
        f"log/{verified.base:020d}-{verified.end:020d}.{'0' * 16}.seg",
        f"index/{verified.base:020d}-{verified.end:020d}.{'0' * 16}-3.idx",
        f"log/{5:020d}-{kit.rows[0].base:020d}.{'0' * 16}.seg",  # below all rows: trimmed from the tier
        "probe/00ff",
    }
    kept = {
        f"log/{open_row.base:020d}-{open_row.end:020d}.{'0' * 16}.seg",  # its upload may yet record it
        f"log/{open_row.end:020d}-{open_row.end + 5:020d}.{'0' * 16}.seg",
        "notes.txt",
        "manifest/HEAD",
    }
    before = dict(kit.store.objects)
    for name in taken | kept:
        await kit.store.create(f"{FOLDER}/{name}", b"1")
    await kit.store.create("another-cluster/log/a", b"1")
    found = await scrubber(kit).scrub(VERIFY)
    assert (found.orphans, found.unsettled, found.strange, found.swept) == (4, 2, 1, 0)
    swept = await scrubber(kit).scrub(SWEEP)
    assert (swept.swept, swept.bad) == (4, 0)
    assert set(kit.store.objects) == {*before, *(f"{FOLDER}/{name}" for name in kept), "another-cluster/log/a"}
    assert (await scrubber(kit).scrub(SWEEP)).orphans == 0


def test_leftovers_of_what_nobody_keeps_are_orphans_without_any_row() -> None:
    """The last segment was deleted, or given up before its parts had a name, and an object of it came late."""
    below, above = (f"log/{base:020d}-{base + 100:020d}.{'0' * 16}.seg" for base in (100, 200))
    listed = [ObjectInfo(name, 1, 0) for name in (below, above)]
    found = survey((), listed, NOW_MS, 200)
    assert ([info.name for info in found.orphans], [info.name for info in found.unsettled]) == ([below], [above])
    assert not survey((), listed, NOW_MS, 0).orphans


async def test_a_young_probe_is_left_alone(kit: TierKit) -> None:
    kit.store.now_ms = NOW_MS - 1000
    await kit.store.create(f"{FOLDER}/probe/00ff", b"1")
    report = await scrubber(kit).scrub(SWEEP)
    assert (report.orphans, report.unsettled, report.swept) == (0, 1, 0)


async def test_a_segment_that_is_trimmed_meanwhile_is_no_finding(kit: TierKit) -> None:
    original, gone = kit.store.head, kit.rows[1]

    async def head(name: str):  # type: ignore[no-untyped-def]
        if f"{gone.base:020d}-" in name and gone in kit.rows:
            kit.rows.remove(gone)
            for part in gone.parts:
                await kit.store.delete(f"{FOLDER}/{part.name}")
        return await original(name)

    kit.store.head = head  # type: ignore[method-assign]
    assert (await scrubber(kit).scrub(VERIFY)).bad == 0


async def test_a_store_that_does_not_answer_is_no_finding(kit: TierKit) -> None:
    def cut_off(data: bytes) -> bytes:
        raise Unreachable("cut off")

    kit.store.answer = cut_off
    with pytest.raises(Unreachable):
        await scrubber(kit, local_log(kit)).scrub(REPAIR)


async def test_a_bad_answer_is_asked_for_again(kit: TierKit) -> None:
    wrong = [True]
    kit.store.answer = lambda data: bytes(len(data)) if wrong and wrong.pop() else data
    assert (await scrubber(kit).scrub(VERIFY)).bad == 0


async def test_a_scrub_that_a_defect_ends_has_ended(kit: TierKit) -> None:
    """Callers wait until it has."""

    async def fails(row: TierSegment, part: TierPart) -> bytes | None:
        raise ValueError("not what it should be")

    kit.store.overwrite(logs(kit)[0], b"cut")
    scrubs = TierScrubs(
        1,
        scrubber(kit, PartSource("a defect", fails)),
        every_hours=0,
        wall_ms=lambda: NOW_MS,
        leads=lambda: True,
        alarm=lambda key, text: None,
        clear=lambda key: None,
    )
    assert scrubs.begin(REPAIR)
    assert scrubs.view.running
    assert scrubs._task is not None
    await asyncio.wait([scrubs._task])
    assert (scrubs.view.running, scrubs.view.finished_ms) == (False, NOW_MS)
    assert scrubs.view.failure == "a defect ended it: ValueError: not what it should be"
