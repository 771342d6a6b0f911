"""Compares running nodes: logs by the chain of headers and by CRCs of the bytes on disk, rows by digest.

RocketMQ's field report 004 asks for this as `inspectConsistency`. The nodes keep running. Logs are compared up to the
lowest commit index of the nodes. Rows are compared by the sums that every node remembers for one marker entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol

import msgspec

from cluster.repair.consistency_views import SPAN_MAX, ConsistencyView, EntryView

STEPS = (1 << 20, 4096, 64, 1)
"""Chunk sizes in bytes. They are used one after another to narrow a difference down."""


class ComparedNode(Protocol):
    """One node, reached over HTTP. Each call raises LocalError if the node does not answer."""

    def view(self, index: int | None = None) -> ConsistencyView:
        """Returns the extent of its log, and its sums at the marker `index` (the newest if None)."""

    def entry(self, index: int) -> EntryView:
        """Returns the header data of the entry at this index."""

    def chunks(self, position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
        """Returns the CRCs of chunks of its log; None for a chunk that it cannot read."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between nodes."""

    what: str
    """"header chain", "log bytes", "unreadable", or the name of a family of rows."""
    index: int
    """First entry that differs; for rows, the marker."""
    position: int | None
    """First byte that differs, None for rows."""
    nodes: dict[int, str]
    """Node -> its CRC or sum at that place; "" if it could not be read."""
    damaged: list[int] = []
    """Nodes whose own checksums fail at that place. These nodes have now noticed the damage, and repair it from the
    other nodes."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison. If it has neither findings nor unknown parts, the nodes are equal up to `index`."""

    nodes: list[int]
    index: int
    """The entry up to which logs were compared."""
    position: int
    bytes_compared: int
    marker: int
    """The entry at which rows were compared; -1 if they were not."""
    findings: list[Difference]
    unknown: list[str]
    """The parts that could not be compared, with the reasons."""


class Inspection:
    """One comparison of all nodes that answer."""

    def __init__(
        self, nodes: Mapping[int, ComparedNode], progress: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """`progress(compared, total)` is called as the comparison goes on, with numbers of bytes per node."""
        self._nodes = dict(nodes)
        self._progress = progress
        self.findings: list[Difference] = []
        self.unknown: list[str] = []
        self._damaged: set[tuple[int, int]] = set()
        """(node, index) of entries that a node could not read when it was asked. The node may have repaired them
        meanwhile."""

    def run(self, marker: int | None) -> Comparison:
        """Compares the nodes. `marker`: the entry at which sums are compared, None if there is none."""
        views = {node: asks.view(marker) for node, asks in self._nodes.items()}
        if len(views) < 2:
            self.unknown.append("it takes two nodes to compare, and only one answers")
        logs = [view.log for view in views.values()]
        first = max(log.first_index for log in logs)
        last = min(log.commit_index for log in logs)
        start, end = max(log.first_position for log in logs), 0
        if last >= first and len(views) > 1:
            end = self._entry(last).end_position
            self._compare_chain(first, last)
            self._compare_bytes(start, end, first, last)
        self._compare_rows(marker, views)
        return Comparison(
            nodes=sorted(views),
            index=last,
            position=end,
            bytes_compared=max(0, end - start),
            marker=-1 if marker is None else marker,
            findings=self.findings,
            unknown=self.unknown,
        )

    # --- the log -----------------------------------------------------------------------------------------------------

    def _entry(self, index: int) -> EntryView:
        """Returns the entry at this index from any node that can read it."""
        return max(self._entries(index).values(), key=lambda entry: bool(entry.header_crc))

    def _entries(self, index: int) -> dict[int, EntryView]:
        entries = {node: asks.entry(index) for node, asks in self._nodes.items()}
        self._damaged.update((node, index) for node, entry in entries.items() if not entry.header_crc)
        return entries

    def _headers(self, index: int) -> dict[int, str]:
        return {node: entry.header_crc for node, entry in self._entries(index).items()}

    def _chained(self, index: int) -> bool:
        return len({crc for crc in self._headers(index).values() if crc}) <= 1

    def _compare_chain(self, first: int, last: int) -> None:
        """Compares headers. Each header covers the header before it, so equal headers at the end prove that all are
        equal. If they differ, a binary search finds the first difference.

        A header that cannot be read says nothing about the chain; the comparison of bytes finds it.
        """
        if self._chained(last):
            return
        low, high = max(first, self._begins()[0]), last  # the chains are equal below `low` and differ at `high`
        while low < high:
            middle = (low + high) // 2
            if self._chained(middle):
                low = middle + 1
            else:
                high = middle
        found = self._headers(high)
        self.findings.append(
            Difference(what="header chain", index=high, position=self._entry(high).position, nodes=found)
        )

    def _compare_bytes(self, start: int, end: int, first: int, last: int) -> None:
        """Finds the first chunk that is not the same on all nodes, and narrows it down to the byte with the chunk sizes
        in STEPS."""
        at = start
        while at < end:
            stop = min(end, at + SPAN_MAX)
            bad = self._first_difference(at, stop, STEPS[0])
            if bad is not None:
                first, begins = self._begins()
                if bad < begins:  # one of the nodes has trimmed it meanwhile
                    at = min(begins, end)
                    continue
                self._narrow(bad, end, first, last)
                return
            at = stop
            self._progress(at - start, end - start)

    def _begins(self) -> tuple[int, int]:
        """Returns the first (index, position) from which on all nodes have the log now."""
        logs = [asks.view().log for asks in self._nodes.values()]
        return max(log.first_index for log in logs), max(log.first_position for log in logs)

    def _narrow(self, position: int, end: int, first: int, last: int) -> None:
        for coarse, fine in pairwise(STEPS):
            found = self._first_difference(position, min(position + coarse, end), fine)
            if found is None:
                self.unknown.append(f"bytes {position}..{position + coarse} differed, and then did not: compare again")
                return
            position = found
        crcs = self._crcs(position, position + 1, 1)
        index = self._index_of(position, first, last)
        unreadable = any(crc[0] is None for crc in crcs.values())
        what = "unreadable" if unreadable else "log bytes"
        nodes = {node: crc[0] or "" for node, crc in crcs.items()}
        self._entries(index)  # each node checks the entry that it reads
        damaged = sorted(node for node, at in self._damaged if at == index)
        self.findings.append(Difference(what=what, index=index, position=position, nodes=nodes, damaged=damaged))

    def _first_difference(self, start: int, stop: int, step: int) -> int | None:
        crcs = self._crcs(start, stop, step)
        for number, column in enumerate(zip(*crcs.values(), strict=True)):
            if None in column or len(set(column)) > 1:
                return start + number * step
        return None

    def _crcs(self, start: int, stop: int, step: int) -> dict[int, list[str | None]]:
        return {node: asks.chunks(start, stop, step) for node, asks in self._nodes.items()}

    def _index_of(self, position: int, first: int, last: int) -> int:
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle).end_position <= position:
                low = middle + 1
            else:
                high = middle
        return low

    # --- rows --------------------------------------------------------------------------------------------------------

    def _compare_rows(self, marker: int | None, views: Mapping[int, ConsistencyView]) -> None:
        if marker is None:
            self.unknown.append("rows were not compared: no leader could mark an entry to compare them at")
            return
        silent = [node for node, view in views.items() if not view.sums]
        if silent:
            self.unknown.append(f"rows of nodes {silent} are not known as of entry {marker}: they have not applied it")
        known = {node: view.sums for node, view in views.items() if view.sums}
        for family in sorted({name for sums in known.values() for name in sums}):
            found = {node: sums.get(family, "") for node, sums in known.items()}
            if not _equal(found):
                self.findings.append(Difference(what=family, index=marker, position=None, nodes=found))


def _equal(values: Mapping[int, str]) -> bool:
    return len(set(values.values())) == 1
