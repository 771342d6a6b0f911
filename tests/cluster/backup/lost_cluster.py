"""The tier of a cluster whose nodes are lost, made out of a recorded log, and what each index of it must look like."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path

from xxhash import xxh3_128

from cluster.backup.manifest import hex_sums
from cluster.tier.object_names import LOG, PartName
from cluster.tier.state_copies.state_copier import StateCopy, part_prefix
from cluster.tier.store.directory_store import DirectoryStore
from cluster.tier.stored_files import Chunk, FileSource, SetWriter, chunk_of, encode
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.node_dir import open_node_dir
from raftlog.types import EMPTY_TAIL, Entry, EntryType, LogTail
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from statemachine.rows.rocksdb_store import RocksKV
from statemachine.trim import Trim
from statemachine.trim import encode as encode_trim


class Lost:
    """Entries of a log in segments of `per_segment` entries, and a store that holds them."""

    def __init__(self, data: Path, folder: Path, per_segment: int = 200) -> None:
        """`data`: the directory of a stopped node, from which the entries are taken."""
        opened = open_node_dir(OsFileSystem(), data)
        recorded = opened.log.read_entries(0, opened.log.tail.index + 1, 1 << 30)
        self.cluster_id = str(opened.identity.cluster_uuid)
        self.group_id = opened.identity.group_id
        opened.close(clean=True)
        self.folder = folder
        self.entries: list[Entry] = []
        self.tails = [EMPTY_TAIL]
        """The tails before entry 0, after entry 0, and so on."""
        for entry in recorded:
            if entry.type == EntryType.DIGEST:  # of the segments as they were: rows tell where files begin
                entry = entry._replace(type=EntryType.NOOP, payload=b"")
            self._add(entry, roll=entry.index % per_segment == 0)
        self.origin: list[tuple[str, int]] = []

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(first index, index after the last)."""
        starts = [entry.index for entry in self.entries if entry.flags & 1]
        return [*zip(starts, [*starts[1:], len(self.entries)], strict=True)]

    def trim(self, segment: int) -> int:
        """Appends a TRIM up to the beginning of that segment, and what follows it; returns the index of the TRIM."""
        first = self.entries[self.segments[segment][0]]
        trim = self.append(EntryType.TRIM, encode_trim(Trim(first.position, first.index, "test")))
        self.append(EntryType.NOOP, b"", roll=True)
        for _ in range(30):
            self.append(EntryType.NOOP, b"")
        return trim

    def append(self, kind: EntryType, payload: bytes, *, roll: bool = False) -> int:
        """One more entry; returns its index."""
        last = self.entries[-1]
        self._add(last._replace(index=last.index + 1, type=kind, payload=payload), roll=roll)
        return last.index + 1

    def fork(self, at: int, cluster_id: str) -> Lost:
        """The cluster that was restored from this one at the index, in a term of its own."""
        forked = copy.copy(self)
        forked.entries, forked.tails = self.entries[: at + 1], self.tails[: at + 2]
        forked.origin = [*self.origin, (self.cluster_id, at)]
        forked.cluster_id = cluster_id
        last = forked.entries[-1]
        forked.entries[-1] = last._replace(term=last.term + 1)  # for what is appended
        forked.append(EntryType.NOOP, b"of the restored cluster")
        forked.entries[-2] = last
        return forked

    def _add(self, entry: Entry, *, roll: bool) -> None:
        made = make_entry(
            self.tails[-1],
            term=entry.term,
            entry_type=entry.type,
            payload=entry.payload,
            timestamp_ms=max(entry.timestamp_ms, 1_000 * (entry.index // 3)),
            group_id=self.group_id,
            segment_size=1 << 30,
            roll=roll,
        )
        self.entries.append(made)
        self.tails.append(tail_after(self.tails[-1], made))

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def upload(self, segments: Sequence[tuple[int, int]] | None = None, cluster_id: str = "") -> list[Path]:
        """Writes segments, each as two objects; returns the files."""
        written = []
        for first, end in self.segments if segments is None else segments:
            middle = (first + end) // 2
            for low, high in ((first, middle), (middle, end)):
                if low == high:
                    continue
                data = b"".join(entry.header + entry.payload for entry in self.entries[low:high])
                base, stop = self.entries[low].position, self.entries[high - 1].end_position
                name = PartName(LOG, base, stop, xxh3_128(data).hexdigest()[:16])
                path = self.folder / (cluster_id or self.cluster_id) / str(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                written.append(path)
        return written

    def copy_state(self, indexes: Sequence[int], scratch: Path) -> list[StateCopy]:
        """Writes copies of the state as of these indexes, ascending."""
        kv = RocksKV(str(scratch))
        state, copies = BrokerState(kv), list[StateCopy]()
        for index in indexes:
            state.apply(self.entries[state.applied.index + 1 : index + 1])
            checkpoint = scratch.with_name(f"{scratch.name}-{index}")
            kv.checkpoint(str(checkpoint))
            sources = [_source(path) for path in sorted(checkpoint.iterdir())]
            begins = next(tail for tail in self.tails if tail.end_position == state.trim_position)
            copies.append(asyncio.run(self._write(index, sources, begins, copies[-1:])))
        kv.close()
        return copies

    async def _write(
        self, index: int, sources: Sequence[FileSource], begins: LogTail, before: Sequence[StateCopy]
    ) -> StateCopy:
        store = DirectoryStore(self.folder)
        writer = SetWriter(store, self.cluster_id, part_prefix(index), before[0].files if before else ())
        files = [await writer.write(source) for source in sources]
        tail: LogTail = self.tails[index + 1]
        genesis = self.entries[0]
        made = StateCopy(
            cluster_id=self.cluster_id,
            checkpoint=f"{index:020d}-{tail.term}-00000000",
            index=index,
            term=tail.term,
            position=tail.end_position,
            header_crc=tail.header_crc,
            timestamp_ms=tail.timestamp_ms,
            made_ms=0,
            node=1,
            group_id=self.group_id,
            cluster_name="DefaultCluster",
            broker_name="shop",
            segment_size=1 << 20,
            log_begins=list(begins),
            genesis=(genesis.header + genesis.payload).hex(),
            origin=self.origin,
            files=files,
            versions={},
        )
        await writer.write_description(made.name, encode(made))
        await store.close()
        return made

    def model(self, index: int) -> dict[str, str]:
        """The digest of the rows as of the index."""
        kv = MemoryKV()
        BrokerState(kv).apply(self.entries[: index + 1])
        return hex_sums(digest(kv))


def _source(path: Path) -> FileSource:
    data = path.read_bytes()

    async def read(start: int, size: int) -> Chunk:
        return chunk_of(data[start : start + size])

    return FileSource(path.name, len(data), read)
