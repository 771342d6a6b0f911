"""The index file of a segment, made again from the segment's own objects in the store.

Once a segment is evicted, no node has its rows or its entries. A damaged index file would then hide messages that are
intact: the store has their frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.tier.store.errors import BadAnswer, NotFound
from cluster.tier.store.object_store import ObjectStore
from raftlog.checksums import crc32c
from raftlog.errors import FrameError
from raftlog.frame import decode_entries
from raftlog.storage.genesis import Genesis
from raftlog.types import Entry
from statemachine.index_file.index_format import IndexMeta
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.payload import PayloadError
from statemachine.tier import LOG_PREFIX, TierPart, TierSegment


class IndexOfTier:
    """Event loop only; entries are decoded on a thread. Holds a whole segment in memory meanwhile."""

    def __init__(self, store: ObjectStore, folder: str, genesis: Genesis) -> None:
        self._store = store
        self._folder = folder
        self._genesis = genesis

    async def content_of(self, row: TierSegment, part: TierPart) -> bytes | None:
        """The index file `part`; None if it is none, if the segment's own objects are not intact, or if it lists
        something else than the entries do: it lacks what topics had that were deleted before it was made. Raises
        StoreError if the store does not answer."""
        if part.name.startswith(LOG_PREFIX):
            return None
        frames = bytearray()
        for each in sorted((each for each in row.parts if each.name.startswith(LOG_PREFIX)), key=lambda one: one.name):
            try:
                data = (await self._store.get(f"{self._folder}/{each.name}", each.size)).data
            except (NotFound, BadAnswer):
                return None
            if crc32c(bytes(data)) != each.crc32c:
                return None
            frames += data
        made = await asyncio.get_running_loop().run_in_executor(None, self._make, row, bytes(frames))
        is_it = made is not None and len(made) == part.size and crc32c(made) == part.crc32c
        return made if is_it else None

    def _make(self, row: TierSegment, frames: bytes) -> bytes | None:
        made = bytearray()
        try:
            entries = list(decode_entries(frames, self._genesis.group_id))
            write_index_of_log(entries, self._meta(row, entries), made.extend)
        except (FrameError, PayloadError):
            return None  # of a newer release
        return bytes(made)

    def _meta(self, row: TierSegment, entries: Sequence[Entry]) -> IndexMeta:
        span, last = row.span, entries[-1]
        return IndexMeta(
            cluster_id=self._genesis.cluster_uuid,
            base=row.base,
            end=row.end,
            first_index=span.first_index,
            last_index=span.last_index,
            last_term=last.term,
            first_ms=span.first_ms,
            last_ms=span.last_ms,
            messages=0,
            queues=0,
            keys=0,
            group_id=self._genesis.group_id,
            last_crc=last.header_crc,
        )
