"""Damage at random places of the store: no byte of it is served, and the scrub finds and repairs it."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

import pytest

from cluster.broker.reads.row_scan import Found
from cluster.tier.fetch.errors import DamagedError
from cluster.tier.fetch.evicted_messages import OldReads
from cluster.tier.fetch.object_reads import ObjectReads
from cluster.tier.fetch.tier_log import TierLog
from cluster.tier.fetch.tier_queues import TierQueues
from cluster.tier.scrub.scrubber import IndexOfTier, PartSource, ScrubOptions, ScrubReport, TierScrubber, log_bytes
from raftlog.storage.files.genesis import Genesis
from statemachine.tier import TierPart, TierSegment
from tests.support.tier_kit import CountingStore
from tests.support.tiered_cluster import FOLDER, Tiered


class Written(NamedTuple):
    """A tier as nodes have made it."""

    rows: tuple[TierSegment, ...]
    objects: dict[str, Any]
    frames: dict[int, bytes]
    """Base of a segment -> its bytes in a node's log."""
    genesis: Genesis
    topic_id: int
    ends: tuple[int, ...]
    """The ends of the queues in the tier: the open segment is not there."""


@pytest.fixture(scope="module")
def written() -> Written:
    with Tiered(7) as made:
        made.send(80, keyed=True)
        made.upload_all()
        node = made.sim.leader()
        state = node.state
        rows = tuple(row for row in state.tier.rows if row.parts)
        topic = state.topics["t"]
        items = [state.fetch(topic.id, queue, 0, 80) for queue in range(topic.queues)]
        ends = tuple(sum(item.position < rows[-1].end for item in queue) for queue in items)
        frames = {row.base: node.log.read_at(row.base, row.end - row.base) for row in rows}
        return Written(rows, dict(made.store.inner.objects), frames, node.log.genesis, topic.id, ends)


class Damaged:
    """The same tier in a store of its own, where bytes rot; nothing is cached."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self.store = CountingStore()
        for name, data in written.objects.items():
            self.store.overwrite(name, data)
        rows = lambda: written.rows  # noqa: E731
        reads = ObjectReads(self.store, None)
        loop = asyncio.get_running_loop()
        self.repaired = reads.broken.forget
        self._reads = lambda: OldReads(loop, TierQueues(reads, rows, FOLDER), TierLog(reads, rows, FOLDER), reads)

    def spoil(self, chance: random.Random) -> str:
        """A bit flips in an object, or its end is cut off; the object's name."""
        part = chance.choice([part for row in self.written.rows for part in row.parts])
        name = f"{FOLDER}/{part.name}"
        data = bytearray(self.written.objects[name])
        if chance.random() < 1 / 3:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        self.store.overwrite(name, bytes(data))
        return part.name

    async def read(self) -> tuple[list[bytes], bool]:
        """Returns the messages of each queue that a new reader gets, and True if it was told of damage."""
        reads, got, told = self._reads(), [], False
        for queue, end in enumerate(self.written.ends):
            body, at = b"", 0
            while at < end:
                try:
                    found = await reads.found(_pull(self.written.topic_id, queue, at), end)
                except DamagedError:
                    told = True
                    break
                assert isinstance(found, Found)
                body += found.body
                at = found.next_offset
            got.append(body)
        return got, told

    async def scrub(self, wishes: ScrubOptions) -> ScrubReport:
        async def from_log(row: TierSegment, part: TierPart) -> bytes | None:
            async def piece(base: int, end: int) -> memoryview:
                return memoryview(self.written.frames[row.base])[base - row.base : end - row.base]

            return await log_bytes(piece, row, part)

        sources = [
            PartSource("the log", from_log),
            PartSource("the store", IndexOfTier(self.store, FOLDER, self.written.genesis).content_of),
        ]
        rows, leads = (lambda: self.written.rows), (lambda: True)
        scrubber = TierScrubber(self.store, FOLDER, rows=rows, wall_ms=lambda: 0, leads=leads, sources=sources)
        return await scrubber.scrub(wishes)


def _pull(topic_id: int, queue: int, offset: int) -> Any:
    class Wish:
        topic, wanted, messages_max, bytes_max = "t", None, 32, 1 << 16

    wish: Any = Wish()
    wish.topic_id, wish.queue_id, wish.offset = topic_id, queue, offset
    return wish


@pytest.mark.parametrize(
    ("seed", "places"), [pytest.param(1, 20, id="20"), pytest.param(2, 500, id="500", marks=pytest.mark.slow)]
)
async def test_damage_anywhere_is_never_served_and_is_repaired(written: Written, seed: int, places: int) -> None:
    chance, tier = random.Random(seed), Damaged(written)
    whole, told = await tier.read()
    assert not told
    assert sum(map(len, whole)) > 40_000
    found_by_read = 0
    for _ in range(places):
        name = tier.spoil(chance)
        got, told = await tier.read()
        assert all(all_of_it.startswith(some) for some, all_of_it in zip(got, whole, strict=True)), name
        assert told or got == whole, name
        found_by_read += told
        report = await tier.scrub(ScrubOptions(repairs=True))
        tier.repaired()
        assert (report.bad, report.repaired) == (1, 1), report
        assert report.findings[0].startswith(name)
        assert tier.store.objects == written.objects, name
    assert (await tier.read()) == (whole, False)
    assert places / 4 < found_by_read < places


async def test_an_index_file_is_made_again_from_its_segment_alone(written: Written) -> None:
    tier = Damaged(written)
    index = IndexOfTier(tier.store, FOLDER, written.genesis)
    for row in written.rows:
        *log, part = row.parts
        name = f"{FOLDER}/{part.name}"
        del tier.store.objects[name]
        assert await index.content_of(row, part) == written.objects[name]
        assert await index.content_of(row, log[0]) is None


@pytest.mark.parametrize("damage", ["flipped", "gone", "cut"])
async def test_no_index_file_is_made_from_frames_that_are_not_intact(written: Written, damage: str) -> None:
    tier, row = Damaged(written), written.rows[1]
    *log, part = row.parts
    name = f"{FOLDER}/{log[0].name}"
    data = tier.store.objects.pop(name)
    if damage == "flipped":
        tier.store.overwrite(name, data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "cut":
        tier.store.overwrite(name, data[:-1])
    assert await IndexOfTier(tier.store, FOLDER, written.genesis).content_of(row, part) is None
