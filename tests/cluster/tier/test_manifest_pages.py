"""Older segments of the manifest lie in pages: nothing is lost, and a version costs what is new."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.tier.manifest_format import (
    ROW_UNITS,
    ROWS_AT_ONCE,
    SCHEMA,
    Head,
    Segment,
    TierManifest,
    all_segments,
    segment_of,
    segments_of,
)
from cluster.tier.manifest_pages import KEPT, ROWS_MAX, WEEK_MS, stretches
from cluster.tier.object_names import HEAD, PAGES
from cluster.tier.published_manifest import ManifestPublisher
from cluster.tier.store.errors import BadAnswer
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data, StoredObject
from raftlog.work import METER
from raftmq.copies.tier_copy import TierCopy
from statemachine.tier import SegmentSpan, TierPart, TierSegment, TierState
from tests.support.tiered_cluster import EVICTING, Tiered

PAGE_BYTES = 1000


class CountingStore(MemoryStore):
    """Counts what is written and read, and keeps only a part of some new pages."""

    def __init__(self, seed: int = 1, torn: float = 0.0) -> None:
        super().__init__()
        self._chance, self._torn = random.Random(seed), torn
        self.bytes = 0

    async def create(self, name: str, data: Data) -> None:
        self.bytes += memoryview(data).nbytes
        tears = f"/{PAGES}/" in name and self._chance.random() < self._torn
        await super().create(name, bytes(data)[:-1] if tears else data)

    async def get(self, name: str, size_max: int) -> StoredObject:
        stored = await super().get(name, size_max)
        self.bytes += memoryview(stored.data).nbytes
        return stored


def row(base: int, size: int, number: int, state: TierState = TierState.VERIFIED) -> TierSegment:
    name = f"{base:020d}-{base + size:020d}.{number:016x}"
    parts = (TierPart(f"log/{name}.seg", size, b"l" * 32, 1), TierPart(f"index/{name}.idx", 9, b"i" * 32, 2))
    return TierSegment(base, state, SegmentSpan(base + size, number, number, number, number), 1, parts)


def rows_of(count: int) -> list[TierSegment]:
    return [row(100 * number, 100, number) for number in range(count)]


def publisher(store: MemoryStore) -> ManifestPublisher:
    return ManifestPublisher(store, "c", "c", PAGE_BYTES)


def manifests(store: MemoryStore) -> Iterator[TierManifest]:
    """Every version that is there."""
    for name, body in store.objects.items():
        if name.startswith("c/manifest/") and not name.endswith(HEAD) and f"/{PAGES}/" not in name:
            yield msgspec.json.decode(body, type=TierManifest)


async def listed(store: MemoryStore, manifest: TierManifest) -> list[Segment]:
    async def get(name: str, size: int) -> Data:
        return store.objects[f"c/{name}"]

    return await all_segments(manifest, get)


async def newest(store: MemoryStore) -> tuple[TierManifest, list[Segment]]:
    head = msgspec.json.decode(store.objects[f"c/{HEAD}"], type=Head)
    body = store.objects[f"c/{head.key}"]
    manifest = msgspec.json.decode(body, type=TierManifest)
    assert (sha256(body).hexdigest(), manifest.schema) == (head.sha256, head.schema)
    return manifest, await listed(store, manifest)


STEPS = st.lists(
    st.sampled_from(["grow", "grow", "grow", "trim", "again", "elect", "publish", "publish"]), max_size=120
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1 << 32))
def test_whatever_grows_goes_and_leads_every_version_names_all_that_was_verified(steps: list[str], seed: int) -> None:
    rng, store = random.Random(seed), CountingStore(seed, torn=0.2)

    async def play() -> None:
        rows: list[TierSegment] = []
        published: dict[int, list[Segment]] = {}
        leader, term, end = publisher(store), 1, 0
        for index, step in enumerate(steps, 1):
            if step == "grow":
                for _ in range(rng.randrange(1, 12)):
                    end += rng.choice((0, 0, 0, 500))  # a hole
                    rows.append(row(end, size := rng.randrange(1, 300), index))
                    end += size
            elif step == "trim":
                del rows[: rng.randrange(len(rows) + 1) if rows else 0]
            elif step == "again":  # a leader that does not know whether VERIFIED is recorded says it once more
                rows = [each._replace(term=term) if rng.random() < 0.2 else each for each in rows]
            elif step == "elect":
                leader, term = publisher(store), term + 1
            else:
                done = await leader.publish([*rows, row(end, 1, 0, TierState.UPLOADED)], term, index)
                published[done.version] = [segment_of(each) for each in rows]
        for manifest in manifests(store):
            if manifest.version in published:
                assert await listed(store, manifest) == published[manifest.version]
                assert manifest.schema == SCHEMA

    asyncio.run(play())


async def test_a_version_costs_what_is_new_and_not_what_the_tier_holds() -> None:
    costs = []
    for count in (205, 2005):
        store, rows = CountingStore(), rows_of(count)
        leader = publisher(store)
        await leader.publish(rows, 1, 1)
        assert (await newest(store))[1] == [segment_of(each) for each in rows]
        store.bytes = 0
        await leader.publish([*rows, row(100 * count, 100, count)], 1, 2)
        costs.append(store.bytes)
        store.bytes = 0
        await publisher(store).publish([*rows, row(100 * count, 100, count)], 2, 3)  # the next leader
        costs.append(store.bytes)
        assert len((await newest(store))[0].pages) == count // 10
    # 180 pages more are named, with 250 bytes each, written and read back. The next leader reads the list once more.
    per_page = 2 * 250
    assert costs[2] < costs[0] + 180 * per_page
    assert costs[3] < costs[1] + 180 * per_page * 1.5


async def test_a_page_goes_once_no_version_that_may_be_read_names_it() -> None:
    store, rows = CountingStore(), rows_of(100)
    leader = publisher(store)
    for index in range(1, 20 * KEPT):
        if index < 60:
            rows = rows[1:]
        await leader.publish(rows, 1, index)
        for manifest in manifests(store):
            await listed(store, manifest)  # all its pages are there
    named = {f"c/{page.name}" for page in (await newest(store))[0].pages}
    assert named == {name for name in store.objects if f"/{PAGES}/" in name}


async def test_a_damaged_page_is_found_and_written_again() -> None:
    store, rows = CountingStore(), rows_of(65)
    leader = publisher(store)
    await leader.publish(rows, 1, 1)
    manifest, _ = await newest(store)
    name = f"c/{manifest.pages[4].name}"
    store.objects[name] = bytes(len(store.objects[name]))
    with pytest.raises(BadAnswer, match="is not what the manifest says"):
        await newest(store)
    for index in range(2, 2 + len(manifest.pages)):
        await leader.publish(rows, 1, index)
    assert (await newest(store))[1] == [segment_of(each) for each in rows]


def test_stretches_begin_where_the_log_says_and_not_where_the_tier_does() -> None:
    rows = rows_of(57)
    for trimmed in range(57):
        kept = rows[trimmed:]
        cut = list(stretches(kept, PAGE_BYTES))
        assert [each for one in cut for each in one] == kept
        assert cut[1:] == list(stretches(rows, PAGE_BYTES))[-len(cut) + 1 :] if len(cut) > 1 else True


def test_a_copy_is_planned_from_pages_too() -> None:
    store, rows = CountingStore(), rows_of(47)
    asyncio.run(publisher(store).publish(rows, 1, 1))
    copy = TierCopy("memory:", "c", store)
    assert [(each.base, each.end) for each in copy.log()] == [(each.base, each.end) for each in rows]
    copy.close()


def test_whole_nodes_publish_pages() -> None:
    tiered = Tiered(2600030, **EVICTING)
    for node in tiered.sim.nodes.values():
        node.options = node.options._replace(tier_page=2)
    with tiered as made:
        made.send(90)
        made.upload_all()
        made.wait_published()
        assert any(f"/{PAGES}/" in name for name in made.store.inner.objects)
        leader = made.sim.leader()
        leader.kill(power=True)
        made.sim.leader(besides=leader)
        leader.start()
        made.send(30)
        made.upload_all()
        made.wait_published()
        verified = [row for row in made.leader_state().tier.rows if row.state is TierState.VERIFIED]
        assert made.manifest().segments == [segment_of(each) for each in verified]


async def test_rows_of_a_page_are_written_down_in_many_turns() -> None:
    rows = [row(base, 10, base) for base in range(0, 10 * 500, 10)]
    longest, at = 0, METER.units

    async def look() -> None:
        nonlocal longest, at
        while True:
            at = METER.units
            await asyncio.sleep(0)
            longest = max(longest, METER.units - at)

    looking = asyncio.ensure_future(look())
    assert await segments_of(rows) == [segment_of(each) for each in rows]
    looking.cancel()
    assert 0 < longest <= ROWS_AT_ONCE * ROW_UNITS


HOUR_MS = 3_600_000


def hourly(count: int) -> list[TierSegment]:
    """Returns the rows of a quiet cluster, all in one stretch of the log."""
    rows = [row(number, 1, number) for number in range(count)]
    return [one._replace(span=one.span._replace(first_ms=n * HOUR_MS)) for n, one in enumerate(rows)]


def test_small_segments_are_cut_by_weeks_and_a_trim_changes_the_first_page_alone() -> None:
    year = hourly(8760)
    pages = list(stretches(year, 1 << 40))
    assert [each for page in pages for each in page] == year
    assert (len(pages), max(map(len, pages))) == (53, WEEK_MS // HOUR_MS)
    assert list(stretches(year[100:], 1 << 40))[1:] == pages[1:]
    assert list(stretches(year[:ROWS_MAX], 1 << 40)) == [tuple(year[:ROWS_MAX])], "as an earlier release cuts"


def test_a_version_of_a_quiet_year_costs_what_its_last_week_does() -> None:
    store, year = CountingStore(), tuple(hourly(8760))
    made = ManifestPublisher(store, "c", "c", 1 << 40)
    asyncio.run(made.publish(year[:-1], 1, 1))
    store.bytes = 0
    asyncio.run(made.publish(year, 1, 2))
    assert store.bytes < 400_000
    newest = max(manifests(store), key=lambda manifest: manifest.version)
    assert [segment.base for segment in asyncio.run(listed(store, newest))] == list(range(8760))
