"""Copies of the log give the rows that the node gave, in parts of any size, and no row that is not intact."""

from __future__ import annotations

import pickle
import shutil
import struct
import unittest.mock
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from google_crc32c import value as crc32c

from cluster.tier.object_names import HEAD
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftmq.arrow import log_copy
from raftmq.arrow.columns import COLUMNS, DEFAULT_COLUMNS, arrow_schema
from raftmq.arrow.log_copy import CopyError, CopyPart, CopySource, cut
from raftmq.arrow.ranges import EARLIEST, LATEST, AtTime, Bounds, QueueRange, Unreadable, plan_topic
from raftmq.client.errors import NotFound
from raftmq.copies.file_copy import FileCopy
from raftmq.copies.log_entries import entries_of
from raftmq.copies.open_copy import opened
from raftmq.copies.part_rows import part_batches
from raftmq.copies.tier_copy import TierCopy
from raftmq_wire.topic_identity import Position
from tests.support.left_copies import ORDERS, OTHER, Left
from tests.support.rows import each_row

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ALL = tuple(COLUMNS)
ORDER = [("topic", "ascending"), ("queue_id", "ascending"), ("queue_offset", "ascending")]
HEADER = struct.Struct(">IIIIIIBBHIQQQQ")
"""The header of a frame (docs/disk-format.md)."""
KINDS = ("backup", "directory", "tier")


def ranges_of(source: CopySource, topic: str, start: Bounds, end: Bounds) -> list[QueueRange]:
    with opened(source) as copy:
        return plan_topic(copy, topic, start, end, words=("start", "end"))


def parts_of(
    source: CopySource, ranges: list[QueueRange], at_least: int | None = None, most: int | None = None
) -> list[CopyPart]:
    with opened(source) as copy:
        parts = cut(copy.segments(ranges), at_least, most)
    assert pickle.loads(pickle.dumps(parts)) == parts
    return parts


def rows_of(
    source: CopySource, parts: list[CopyPart], batch_rows: int = 8192, names: tuple[str, ...] = ALL
) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for part in parts:
        with opened(source) as copy:
            found = list(part_batches(copy, part, names, batch_rows))
        assert sum(batch.num_rows for batch in found) == part.messages
        assert max(batch.num_rows for batch in found) <= batch_rows
        batches += found
    return pa.Table.from_batches(batches, arrow_schema(names))


def whole(source: CopySource, topic: str) -> list[QueueRange]:
    return ranges_of(source, topic, Bounds(EARLIEST), Bounds(LATEST))


@each_row("kind", KINDS)
@each_row(("at_least", "most", "batch_rows"), [(None, None, 8192), (7, None, 8192), (None, 20, 7)])
def test_rows_are_those_of_the_node(
    left: Left, kind: str, at_least: int | None, most: int | None, batch_rows: int
) -> None:
    source: CopySource = getattr(left, kind)
    parts = parts_of(source, whole(source, ORDERS) + whole(source, OTHER), at_least, most)
    assert len(parts) >= (at_least or 3)
    assert max(part.messages for part in parts) <= (most or 1000)
    rows = rows_of(source, parts, batch_rows)
    for topic, table in left.tables.items():
        of_topic = rows.filter(pa.compute.equal(rows["topic"], topic))
        assert of_topic.sort_by(ORDER).equals(table.sort_by(ORDER))
    queue = rows.filter(pa.compute.and_(pa.compute.equal(rows["topic"], ORDERS), pa.compute.equal(rows["queue_id"], 1)))
    assert queue["queue_offset"].to_pylist() == list(range(90)), "in order without sorting"


@each_row("kind", KINDS)
@each_row("block", [100, 1 << 23])
def test_index_and_term_are_those_of_the_entry_that_holds_the_message(
    left: Left, kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part may begin in the middle of a segment or not, and one read may hold any number of bytes."""
    source: CopySource = getattr(left, kind)
    for of_kind in (FileCopy, TierCopy):
        monkeypatch.setattr(of_kind, "read_bytes", block)
    parts = parts_of(source, whole(source, ORDERS), 7)
    rows = rows_of(source, parts, names=("position", "index", "term")).to_pylist()
    with opened(source) as copy:
        held = {entry.index: entry for segment in copy.log() for entry in entries_of(copy, segment)}
    assert len({row["index"] for row in rows}) > 3
    for row in rows:
        entry = held[row["index"]]
        assert entry.position < row["position"] < entry.end_position
        assert entry.term == row["term"]


@pytest.mark.parametrize("what", ["its checksum", "its position", "its parent"])
def test_a_frame_that_does_not_belong_there_is_named(left: Left, tmp_path: Path, what: str) -> None:
    """The message itself is intact, so that it can be read without index and term."""
    copied = tmp_path / "copy"
    shutil.copytree(left.backup.path, copied)
    source = left.backup._replace(path=str(copied))
    (part, *_) = parts_of(source, [QueueRange(ORDERS, 0, 0, 150)])
    with opened(source) as copy:
        entry = list(entries_of(copy, part.segment))[1]
    fields = list(HEADER.unpack(entry.header))
    if what == "its position":
        fields[11] += 64
    elif what == "its parent":
        fields[2] ^= 1
    rest = HEADER.pack(*fields)[8:]
    fields[1] = crc32c(rest) ^ (what == "its checksum")
    segment = Path(part.segment.places[0].name)
    data = bytearray(segment.read_bytes())
    at = LOCAL_HEADER_SIZE + entry.position - part.segment.base
    data[at : at + 64] = HEADER.pack(*fields)
    segment.chmod(0o600)
    segment.write_bytes(data)
    with opened(source) as copy:
        assert sum(batch.num_rows for batch in part_batches(copy, part, ("body",), 8192)) == part.messages
        with pytest.raises(CopyError, match=f"{segment.name} is damaged at position {entry.position} of the log"):
            list(part_batches(copy, part, ("index",), 8192))


def test_batches_and_reads_end_at_their_bytes_and_rows_are_the_same(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(left.backup, whole(left.backup, ORDERS))
    expected = rows_of(left.backup, parts, names=DEFAULT_COLUMNS)
    monkeypatch.setattr(FileCopy, "read_bytes", 20_000)
    with opened(left.backup) as copy, unittest.mock.patch.object(copy, "read", wraps=copy.read) as read:
        batches = partial(part_batches, copy, columns=DEFAULT_COLUMNS, batch_rows=8192, batch_bytes=4000)
        found = [batch for part in parts for batch in batches(part)]
        sizes = [stop - start for _, start, stop in (call.args for call in read.call_args_list)]
    assert pa.Table.from_batches(found).equals(expected)
    assert max(sizes) <= 20_000
    assert len(found) > len(sizes) > len(parts)
    spans = [batch["position"].to_numpy() for batch in found]
    assert max(span[-1] - span[0] for span in spans) < 4000


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_those_of_the_node(left: Left, kind: str) -> None:
    source: CopySource = getattr(left, kind)
    ranges = ranges_of(source, ORDERS, Bounds(AtTime(left.middle_ms)), Bounds(LATEST))
    table = left.tables[ORDERS]
    later = table.filter(pa.compute.greater_equal(table["store_ms"], left.middle_ms))
    assert 0 < later.num_rows < table.num_rows
    assert rows_of(source, parts_of(source, ranges)).sort_by(ORDER).equals(later.sort_by(ORDER))
    some = [QueueRange(ORDERS, 0, 40, 60), QueueRange(ORDERS, 1, 5, 5)]
    offsets = rows_of(source, parts_of(source, some))["queue_offset"].to_pylist()
    assert offsets == list(range(40, 60))


@pytest.mark.parametrize("kind", KINDS)
def test_a_position_in_another_topic_is_refused(left: Left, kind: str) -> None:
    """Every copy knows which topic of which cluster it has under a name."""
    with opened(left.backup) as copy:
        identity = copy.describe_topic(ORDERS).identity
    assert identity is not None
    source: CopySource = getattr(left, kind)
    ranges = ranges_of(source, ORDERS, Bounds(EARLIEST, {0: Position(40, identity)}), Bounds(LATEST))
    assert [(planned.start, planned.counted_in) for planned in ranges] == [(40, identity), (0, identity)]
    elsewhere = identity._replace(cluster="00000000-0000-0000-0000-000000000000")
    for other in (identity._replace(topic_id=identity.topic_id + 1), elsewhere):
        with pytest.raises(Unreadable, match=f"start asks for offset 40 of another topic {ORDERS}"):
            ranges_of(source, ORDERS, Bounds(EARLIEST, {0: Position(40, other)}), Bounds(LATEST))


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_topic_is_named(left: Left, kind: str) -> None:
    with opened(getattr(left, kind)) as copy:
        assert {ORDERS, OTHER} <= set(copy.topics())
        with pytest.raises(NotFound, match="has no topic nothing"):
            copy.describe_topic("nothing")


def test_far_messages_are_read_alone_and_near_ones_together(left: Left) -> None:
    """The bytes of the other topic lie between: they are read, or skipped, and the rows are the same."""
    source = left.backup
    parts = parts_of(source, whole(source, ORDERS))
    for gap, reads in ((log_copy.PART_BYTES, 3), (1000, 5)):
        with opened(source) as copy, unittest.mock.patch.object(copy, "read", wraps=copy.read) as read:
            batches = partial(part_batches, copy, columns=DEFAULT_COLUMNS, batch_rows=8192, gap_bytes=gap)
            rows = [batch.num_rows for part in parts for batch in batches(part)]
        assert sum(rows) == left.tables[ORDERS].num_rows
        assert read.call_count == reads


def folder_of(source: CopySource, to: Path) -> CopySource:
    """A copy of the copy, to be damaged."""
    origin = urlsplit(source.path).path if source.path.startswith("file:") else source.path
    shutil.copytree(origin, to)
    return source._replace(path=to.as_uri() if source.path.startswith("file:") else str(to))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["backup", "tier"])
def test_a_damaged_message_is_named_by_file_and_position(left: Left, kind: str, tmp_path: Path) -> None:
    source = folder_of(getattr(left, kind), tmp_path / "copy")
    parts = parts_of(source, whole(source, OTHER))
    position = left.tables[OTHER]["position"][4].as_py()
    (segment,) = (part.segment for part in parts if part.segment.base <= position < part.segment.end)
    place = segment.places[0]
    path = tmp_path / "copy" / place.name  # an absolute name of a file replaces the folder
    header = 0 if kind == "tier" else LOCAL_HEADER_SIZE
    flip(path, header + position + 20_000 - place.base)
    with pytest.raises(CopyError, match=f"{path.name} is damaged at position {position} of the log") as caught:
        rows_of(source, parts)
    assert caught.value.why.endswith(f"{OTHER} queue 0 offset 4")


def test_a_restored_cluster_is_read_with_the_objects_of_its_ancestor(left: Left, tmp_path: Path) -> None:
    """Its manifest names them, and they lie below the ancestor's id."""
    source = folder_of(left.tier, tmp_path / "copy")
    store = Path(urlsplit(source.path).path)
    (old,) = [path for path in store.iterdir() if not path.name.startswith(".")]
    restored = "00000000-0000-0000-0000-00000000000b"
    shutil.copytree(old / "manifest", store / restored / "manifest")
    theirs, ours = source._replace(cluster=old.name), source._replace(cluster=restored)
    everything = ranges_of(theirs, ORDERS, Bounds(EARLIEST), Bounds(LATEST))
    found = ranges_of(ours, ORDERS, Bounds(EARLIEST), Bounds(LATEST))
    assert [each._replace(counted_in=None) for each in found] == [each._replace(counted_in=None) for each in everything]
    assert {each.counted_in.cluster for each in found if each.counted_in} == {restored}
    assert rows_of(ours, parts_of(ours, everything)) == rows_of(theirs, parts_of(theirs, everything))
    for segment in old.glob("log/*.seg"):
        segment.write_bytes(bytes(segment.stat().st_size))
    with pytest.raises(CopyError, match=f"{old.name}/log/.* is damaged at position"):
        rows_of(ours, parts_of(ours, everything))
    for index in old.glob("index/*"):
        index.write_bytes(bytes(index.stat().st_size))
    with pytest.raises(CopyError, match=f"{old.name}/index/.* is damaged"):
        ranges_of(ours, ORDERS, Bounds(EARLIEST), Bounds(LATEST))
    shutil.move(old, tmp_path / "away")
    with pytest.raises(CopyError, match="lacks an object") as caught:
        ranges_of(ours, ORDERS, Bounds(EARLIEST), Bounds(LATEST))
    assert "ancestor" in caught.value.hint


def test_what_a_tier_lacks_is_named(left: Left, tmp_path: Path) -> None:
    source = folder_of(left.tier, tmp_path / "copy")
    (head,) = tmp_path.rglob(HEAD)
    (index, *_) = sorted(tmp_path.rglob("*.idx"))
    flip(index, index.stat().st_size - 30)
    with pytest.raises(CopyError, match=f"{index.name} is damaged"):
        whole(source, ORDERS)
    index.unlink()
    with pytest.raises(CopyError, match="lacks an object") as caught:
        whole(source, ORDERS)
    assert index.name in caught.value.why
    (manifest,) = (path for path in head.parent.iterdir() if path.name.endswith(".json") and is_newest(path))
    flip(manifest, 5)
    with pytest.raises(CopyError, match=f"{manifest.name} is damaged"):
        whole(source, ORDERS)
    head.unlink()
    with pytest.raises(CopyError, match="holds the tiers of 0 clusters"):
        whole(source, ORDERS)


def is_newest(manifest: Path) -> bool:
    return manifest.name == max(path.name for path in manifest.parent.glob("*.json"))


def test_what_is_no_copy_is_named(left: Left, tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="is no copy of a log"), opened(CopySource("files", str(tmp_path))):
        pass
    with pytest.raises(CopyError, match="is not the URL of an object store"), opened(CopySource("tier", "ftp://x")):
        pass
