"""Throughput and latency over time, in bins, from the operations of clients."""

from __future__ import annotations

from typing import NamedTuple

from jepsen_like.checkers.availability import quantile
from jepsen_like.history import Operation

BINS = 240


class Series(NamedTuple):
    """One value per bin; bins are equally long and start at `start_ns`."""

    start_ns: int
    bin_ns: int
    ok: list[int]
    """Operations that ended so in this bin, like `fail` and `info`."""
    fail: list[int]
    info: list[int]
    p50_ms: list[float | None]
    """Median latency of the operations that ended ok in this bin; None if there were none."""
    p99_ms: list[float | None]
    max_ms: list[float | None]

    def per_second(self, counts: list[int]) -> list[float | None]:
        """Counts as rates."""
        return [count * 1e9 / self.bin_ns for count in counts]


def series_of(operations: list[Operation], start_ns: int, end_ns: int) -> Series:
    """Sorts completed operations into bins by the moment of their completion."""
    bin_ns = max(1, -(-(end_ns - start_ns + 1) // BINS))
    counts: dict[str, list[int]] = {"ok": [0] * BINS, "fail": [0] * BINS, "info": [0] * BINS}
    waits: list[list[int]] = [[] for _ in range(BINS)]
    for invoked, completed in operations:
        if completed is None or not start_ns <= completed.time_ns <= end_ns:
            continue
        position = (completed.time_ns - start_ns) // bin_ns
        counts[completed.type][position] += 1
        if completed.type == "ok":
            waits[position].append(completed.time_ns - invoked.time_ns)
    for wait in waits:
        wait.sort()
    return Series(
        start_ns,
        bin_ns,
        counts["ok"],
        counts["fail"],
        counts["info"],
        [_quantile(wait, 0.5) for wait in waits],
        [_quantile(wait, 0.99) for wait in waits],
        [_quantile(wait, 1.0) for wait in waits],
    )


def _quantile(ordered: list[int], share: float) -> float | None:
    return quantile(ordered, share) / 1e6 if ordered else None
