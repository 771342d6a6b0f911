"""The requests of honest clients in a part of a run: how long they took, and which were not served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from jepsen_like.checkers.availability import quantile
from jepsen_like.history import Op

ASKED = frozenset({"send", "poll", "commit_offset", "fetch_offset", "put", "delete", "get"})


class Seen(NamedTuple):
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


def seen_in(ops: Iterable[Op], spans: Iterable[tuple[int, int]]) -> Seen:
    """Gathers the requests that began in one of these spans (from, until), in nanoseconds on the clock of the history.
    A request that was in flight at a span's end counts with its full latency."""
    wanted = sorted(spans)
    begun: dict[int, Op] = {}
    latencies: dict[str, list[int]] = {}
    unanswered: Counter[str] = Counter()
    first = ""
    for op in ops:
        if op.f not in ASKED:
            continue
        if op.type == "invoke":
            if any(start <= op.time_ns < stop for start, stop in wanted):
                begun[op.process] = op
            continue
        asked = begun.pop(op.process, None)
        if asked is None:
            continue
        if op.type == "ok":
            latencies.setdefault(op.f, []).append((op.time_ns - asked.time_ns) // 1000)
        else:
            unanswered[op.f] += 1
            first = first or f"{op.f}: {op.value.get('error', op.type)}"
    for values in latencies.values():
        values.sort()
    return Seen(latencies, unanswered, first)
