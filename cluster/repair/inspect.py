"""Compares running nodes: logs by the chain of headers and by CRCs of the bytes on disk, rows by digest.

It is the `inspectConsistency` that RocketMQ's field report 004 asks for. No node is stopped: the log is compared up to
the lowest commit index, and the rows by the sums that every node remembers of one marker entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol

import msgspec

from cluster.repair.consistency_views import SPAN_MAX, ConsistencyView, EntryView

STEPS = (1 << 20, 4096, 64, 1)
"""Chunk sizes, bytes: one after another narrows a difference down."""


class Asks(Protocol):
    """One node, asked over HTTP. Each raises LocalError if it does not answer."""

    def view(self, index: int | None = None) -> ConsistencyView:
        """Its log, and its sums at a marker (the newest if None)."""

    def entry(self, index: int) -> EntryView:
        """One entry."""

    def chunks(self, position: int, end_position: int, chunk_bytes: int) -> list[str | None]:
        """CRCs of its log."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference."""

    what: str
    """"header chain", "log bytes", "unreadable", or the name of a family of rows."""
    index: int
    """First entry that differs; for rows, the marker."""
    position: int | None
    """First byte that differs, None for rows."""
    nodes: dict[int, str]
    """Node -> its CRC or sum there; "" for nothing that can be read."""
    damaged: list[int] = []
    """Nodes whose own checksums fail there: they have noticed now, and repair it from the others."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. Neither findings nor unknown: all that was compared is equal."""

    nodes: list[int]
    index: int
    """Logs were compared up to this entry."""
    position: int
    bytes_compared: int
    marker: int
    """Rows were compared as of this entry; -1 if they were not."""
    findings: list[Finding]
    unknown: list[str]
    """The parts that could not be compared, and why."""


class Inspection:
    """One comparison of all nodes that answer."""

    def __init__(self, nodes: Mapping[int, Asks], progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """`progress` receives the bytes compared and to compare, per node."""
        self._nodes = dict(nodes)
        self._progress = progress
        self.findings: list[Finding] = []
        self.unknown: list[str] = []
        self._damaged: set[tuple[int, int]] = set()
        """(node, index) of entries that a node could not read, when it was asked: it may have repaired them since."""

    def run(self, marker: int | None) -> Report:
        """`marker`: the entry at which sums are compared, None if there is none."""
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
        return Report(
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
        """Returns the entry from a node that can read it, if one can."""
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
        """Every header covers the one before it: one comparison at the end speaks for all, else halving finds where.

        A header that cannot be read says nothing about the chain; the comparison of bytes finds it."""
        if self._chained(last):
            return
        low, high = max(first, self._begins()[0]), last  # equal below low, different at high
        while low < high:
            middle = (low + high) // 2
            if self._chained(middle):
                low = middle + 1
            else:
                high = middle
        found = self._headers(high)
        self.findings.append(Finding(what="header chain", index=high, position=self._entry(high).position, nodes=found))

    def _compare_bytes(self, start: int, end: int, first: int, last: int) -> None:
        """The first chunk that is not the same everywhere, halved down to the byte."""
        at = start
        while at < end:
            stop = min(end, at + SPAN_MAX)
            bad = self._first_difference(at, stop, STEPS[0])
            if bad is not None:
                first, begins = self._begins()
                if bad < begins:  # what one of them has trimmed meanwhile
                    at = min(begins, end)
                    continue
                self._narrow(bad, end, first, last)
                return
            at = stop
            self._progress(at - start, end - start)

    def _begins(self) -> tuple[int, int]:
        """(index, position) from which on all of them have the log now."""
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
        self._entries(index)  # each checks what it reads
        damaged = sorted(node for node, at in self._damaged if at == index)
        self.findings.append(Finding(what=what, index=index, position=position, nodes=nodes, damaged=damaged))

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
                self.findings.append(Finding(what=family, index=marker, position=None, nodes=found))


def _equal(values: Mapping[int, str]) -> bool:
    return len(set(values.values())) == 1
