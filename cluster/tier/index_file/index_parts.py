"""The index file of a segment as a part of what the uploader writes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from xxhash import xxh3_128

from cluster.tier.index_file.index_files import IndexFiles
from cluster.tier.object_names import INDEX
from cluster.tier.uploader import Made
from raftlog.checksums import crc32c
from statemachine.tier import SegmentSpan


class LocalIndexParts:
    """Implements `cluster.tier.uploader.IndexParts` with this node's own files."""

    def __init__(self, files: IndexFiles) -> None:
        self._files = files

    async def of_segment(self, base: int, span: SegmentSpan) -> AsyncIterator[Made]:
        """See `IndexParts`: one part, built first if the node has no file yet."""
        data = await self._files.load(base, span.end)
        yield Made(INDEX, base, span.end, data, xxh3_128(data).digest(), crc32c(data))
