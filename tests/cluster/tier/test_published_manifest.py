"""The manifest is replaced by a node that knows more, and by none that knows less."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import msgspec
import pytest

from cluster.tier.manifest_format import Head, TierManifest, segment_of
from cluster.tier.manifest_pages import KEPT
from cluster.tier.object_names import HEAD, manifest_name
from cluster.tier.published_manifest import ManifestPublisher, encode
from cluster.tier.store.errors import BadAnswer, Conflict
from cluster.tier.store.memory_store import MemoryStore
from cluster.tier.store.object_store import Data, StoredObject
from statemachine.tier import SegmentSpan, TierPart, TierSegment, TierState


def row(number: int, state: TierState = TierState.VERIFIED) -> TierSegment:
    span = SegmentSpan(number * 100 + 100, number, number, number, number)
    parts = (TierPart(f"log/{number}", 100, b"l" * 32, 1), TierPart(f"index/{number}", 9, b"i" * 32, 2))
    return TierSegment(number * 100, state, span, 1, parts)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def publisher(store: MemoryStore) -> ManifestPublisher:
    return ManifestPublisher(store, "c", "c")


def newest(store: MemoryStore) -> tuple[Head, TierManifest]:
    head = msgspec.json.decode(store.objects[f"c/{HEAD}"], type=Head)
    body = store.objects[f"c/{head.key}"]
    assert sha256(body).hexdigest() == head.sha256
    return head, msgspec.json.decode(body, type=TierManifest)


async def test_it_lists_what_is_verified_and_nothing_else(store: MemoryStore) -> None:
    rows = [row(0), row(1), row(2, TierState.UPLOADED), row(3, TierState.DELETING)]
    done = await publisher(store).publish(rows, 3, 50)
    head, manifest = newest(store)
    assert (done.version, done.by_this, head.term, head.applied_index) == (1, True, 3, 50)
    assert [(one.base, one.end) for one in manifest.segments] == [(0, 100), (100, 200)]
    assert [part.name for part in manifest.segments[0].parts] == ["log/0"]
    assert [part.name for part in manifest.segments[0].index] == ["index/0"]


@pytest.mark.parametrize(("term", "index", "replaces"), [(2, 999, False), (3, 50, False), (3, 51, True), (4, 10, True)])
async def test_a_deposed_leader_replaces_nothing(store: MemoryStore, term: int, index: int, replaces: bool) -> None:
    await publisher(store).publish([row(0), row(1)], 3, 50)
    before = newest(store)
    done = await publisher(store).publish([row(0)], term, index)
    assert done.by_this == replaces
    assert (newest(store) == before) != replaces
    assert newest(store)[0].version == done.version == 1 + replaces


class SlowHead(MemoryStore):
    """Between the reading of HEAD and what follows somebody else publishes."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile = asyncio.Event()

    async def get(self, name: str, size_max: int) -> StoredObject:
        stored = await super().get(name, size_max)
        if name.endswith(HEAD) and not self.meanwhile.is_set():
            self.meanwhile.set()
            await publisher(self).publish([row(0), row(1), row(2)], 5, 80)
        return stored


async def test_of_two_that_read_the_same_head_one_replaces_it(store: MemoryStore) -> None:
    slow = SlowHead()
    slow.meanwhile.set()
    await publisher(slow).publish([row(0)], 3, 50)
    slow.meanwhile.clear()
    with pytest.raises(Conflict):
        await publisher(slow).publish([row(0), row(1)], 4, 70)
    assert (newest(slow)[0].term, len(newest(slow)[1].segments)) == (5, 3)
    assert not (await publisher(slow).publish([row(0), row(1)], 4, 71)).by_this


async def test_a_manifest_that_reads_back_wrong_is_named_by_nobody(store: MemoryStore) -> None:
    await publisher(store).publish([row(0)], 3, 40)
    body = encode(publisher(store)._manifest([], [segment_of(row(0))], 2, 3, 50))[1]
    await store.create(f"c/{manifest_name(2, sha256(body).hexdigest()[:16])}", body[:-1])
    assert (await publisher(store).publish([row(0)], 3, 50)).version == 3
    assert newest(store)[0].version == 3


@pytest.mark.parametrize("damaged", [b"{", b"", b"[]", b" " * 5000, bytes(100_000), b'{"schema": 10}', b"\xff" * 9])
async def test_a_head_that_cannot_be_read_is_written_again_with_a_higher_version(
    store: MemoryStore, damaged: bytes
) -> None:
    for index in range(3):
        await publisher(store).publish([row(0)], 3, index)
    store.objects[f"c/{HEAD}"] = damaged
    assert (await publisher(store).publish([row(0)], 3, 9)).version == 4
    assert newest(store)[0].applied_index == 9


@pytest.mark.parametrize(
    "wrong", [{"applied_index": 70}, {"term": 7}, {"version": 8}, {"sha256": "0" * 64}, {"key": "../elsewhere"}]
)
async def test_a_head_that_says_what_its_manifest_does_not_is_written_again(
    store: MemoryStore, wrong: dict[str, object]
) -> None:
    """A flipped digit would else be taken for another leader's newer version, for ever."""
    for index in (49, 50):
        await publisher(store).publish([row(0)], 3, index)
    damaged = msgspec.json.decode(store.objects[f"c/{HEAD}"]) | wrong
    store.objects[f"c/{HEAD}"] = msgspec.json.encode(damaged)
    done = await publisher(store).publish([row(0), row(1)], 3, 50)
    head, manifest = newest(store)
    assert (done.by_this, head.version, head.term, head.applied_index) == (True, 3, 3, 50)
    assert len(manifest.segments) == 2


async def test_a_head_that_is_torn_when_it_is_written_is_not_published() -> None:
    class Tearing(MemoryStore):
        tears = True

        async def create(self, name: str, data: Data) -> None:
            tears = self.tears and name.endswith(HEAD)
            await super().create(name, bytes(data)[:-1] if tears else data)

    store = Tearing()
    with pytest.raises(BadAnswer, match="reads back wrong"):
        await publisher(store).publish([row(0)], 3, 50)
    store.tears = False
    assert (await publisher(store).publish([row(0)], 3, 50)).by_this
    assert newest(store)[0].applied_index == 50


async def test_a_store_that_tears_every_object_is_no_reason_to_try_for_ever(store: MemoryStore) -> None:
    class Tearing(MemoryStore):
        async def create(self, name: str, data: Data) -> None:
            await super().create(name, bytes(data)[:-1])

    with pytest.raises(BadAnswer, match="read back wrong"):
        await publisher(Tearing()).publish([row(0)], 3, 50)


async def test_old_versions_go_and_the_last_ones_stay(store: MemoryStore) -> None:
    for index in range(3 * KEPT):
        await publisher(store).publish([row(0)], 3, index)
    left = [name for name in store.objects if not name.endswith("HEAD")]
    assert len(left) == KEPT + 1
    newest(store)
