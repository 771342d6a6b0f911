"""Measures the requests of honest clients in a part of a run: how long they took, and which failed or had an unknown
outcome.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jepsen_like.checkers.availability import quantile
from jepsen_like.history import Op

P99_MAX_MS = 250.0
"""The highest 99th percentile allowed for honest sends beside hostile clients, in ms, while the leader stays."""
ASKED = frozenset({"send", "poll", "commit_offset", "fetch_offset", "put", "delete", "get"})


class RequestFigures(NamedTuple):
    """Latencies and failures of the requests that were made in certain spans of time."""

    latencies_us: dict[str, list[int]]
    """Operation -> microseconds of each request that was answered, ascending."""
    unanswered: Counter[str]
    """Operation -> the number of requests that ended as failed or unknown."""
    first: str
    """The first request that failed or had an unknown outcome, as text "operation: error"; "" if there was none."""

    def p99_ms(self, asked: str = "send") -> float:
        """Returns the 99th percentile in milliseconds; 0 if no request was answered."""
        values = self.latencies_us.get(asked)
        return quantile(values, 0.99) / 1000 if values else 0.0

    def count(self, asked: str = "send") -> int:
        """Returns the number of requests that were answered."""
        return len(self.latencies_us.get(asked, ()))


def seen_in(ops: Iterable[Op], spans: Iterable[tuple[int, int]]) -> RequestFigures:
    """Gathers the requests that began in one of these spans (from, until), in nanoseconds on the clock of the history.
    A request that was in flight at a span's end counts with its full latency."""
    return joined(seen_each(ops, sorted(spans)))


def joined(parts: Iterable[RequestFigures]) -> RequestFigures:
    """Returns the figures over all requests of these parts."""
    whole = RequestFigures({}, Counter(), "")
    first = ""
    for part in parts:
        for asked, values in part.latencies_us.items():
            whole.latencies_us.setdefault(asked, []).extend(values)
        whole.unanswered.update(part.unanswered)
        first = first or part.first
    for values in whole.latencies_us.values():
        values.sort()
    return whole._replace(first=first)


def seen_each(ops: Iterable[Op], spans: Sequence[tuple[int, int]]) -> list[RequestFigures]:
    """Gathers for each of these spans, which are ascending and do not overlap, the requests that began in it."""
    starts = [start for start, _ in spans]
    begun: dict[int, tuple[int, Op]] = {}
    found = [RequestFigures({}, Counter(), "") for _ in spans]
    for op in ops:
        if op.f not in ASKED:
            continue
        if op.type == "invoke":
            place = bisect_right(starts, op.time_ns) - 1
            if place >= 0 and op.time_ns < spans[place][1]:
                begun[op.process] = place, op
            continue
        known = begun.pop(op.process, None)
        if known is None:
            continue
        place, asked = known
        if op.type == "ok":
            found[place].latencies_us.setdefault(op.f, []).append((op.time_ns - asked.time_ns) // 1000)
        else:
            found[place].unanswered[op.f] += 1
            if not found[place].first:
                found[place] = found[place]._replace(first=f"{op.f}: {op.value.get('error', op.type)}")
    for seen in found:
        for values in seen.latencies_us.values():
            values.sort()
    return found
