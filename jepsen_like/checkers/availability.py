"""Availability: outages as clients saw them, and how long after each fault operations succeeded again."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from operator import attrgetter, sub
from typing import Any, NamedTuple

from jepsen_like.checkers.steps import FAULT, NOTES, Operations, values_of
from jepsen_like.checkers.verdict import Findings, Result
from jepsen_like.checkers.workload import Workload
from jepsen_like.history import Operation

NAME = "availability"

_JUDGED_AFTER_THE_RUN = frozenset({"read", "digest"})
"""Read from replicas one by one: says nothing about the cluster being available."""

REST_NS = 2_000_000_000
"""Clients that do not try for this long are not waiting any more."""


class Outage(NamedTuple):
    """A time in which clients tried and nothing succeeded. Nanoseconds on the clock of the history."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns


class Fault(NamedTuple):
    """One fault of the run."""

    kind: str
    nodes: tuple[int, ...]
    detail: str
    start_ns: int
    end_ns: int | None
    """None: never lifted."""
    op: int


def check(operations: Operations, workload: Workload) -> Result:
    """Measures outages and failover times. Wrong is only a cluster that does not come back after the last fault."""
    findings = Findings()
    attempts = operations.of(*sorted(operations.kinds - NOTES - _JUDGED_AFTER_THE_RUN))
    faults = faults_of(operations)
    pauses = outages(attempts)
    long = [pause for pause in pauses if pause.length_ns > workload.unavailable_after_ns]
    if workload.must_recover and faults and attempts:
        _recovered(attempts, faults, findings)
    stats: dict[str, Any] = {
        "faults": len(faults),
        "outages": len(long),
        "outage_ms": round(sum(pause.length_ns for pause in long) / 1e6),
        "longest_ms": round(max((pause.length_ns for pause in long), default=0) / 1e6),
        "failover_ms": failover_times(pauses, faults),
    }
    return findings.result(NAME, stats, workload.allowed)


def faults_of(operations: Operations) -> list[Fault]:
    """Every fault in order of its start."""
    faults = []
    with values_of(operations.of(FAULT)) as watched:
        for operation in watched:
            value, lifted = operation.invoked.value, operation.completed
            told = lifted.value if lifted is not None and lifted.value else value
            detail = str(told.get("detail", value.get("detail", "")))
            nodes = tuple(int(node) for node in value["nodes"])
            end = lifted.time_ns if lifted is not None and lifted.type == "ok" else None
            start = operation.invoked
            faults.append(Fault(str(value["kind"]), nodes, detail, start.time_ns, end, start.index))
    return faults


def outages(attempts: list[Operation], at_least_ns: int = 1_000_000) -> list[Outage]:
    """Times between two successes in which clients were waiting or trying, and that lasted longer than this.

    From the moment a client was first left waiting: a time in which nobody asked anything is no outage.
    """
    if not attempts:
        return []
    invoked = list(map(attrgetter("invoked.time_ns"), attempts))
    ends = [invoked[-1] if end is None else end.time_ns for _, end in attempts]
    latest_end = list(accumulate(ends, max))
    marks = [end.time_ns for _, end in attempts if end is not None and end.type == "ok"]
    marks.sort()
    marks = [invoked[0], *marks, max(latest_end[-1], invoked[-1])]
    found: list[Outage] = []
    for i, length in enumerate(map(sub, islice(marks, 1, None), marks)):
        if length > at_least_ns:
            position = bisect_right(invoked, marks[i])
            waiting_until = latest_end[position - 1] if position else marks[i]
            tries = ((invoked[k], ends[k]) for k in range(position, len(invoked)))
            found += _waited(marks[i], marks[i + 1], waiting_until, tries)
    return [outage for outage in found if outage.length_ns > at_least_ns]


def _waited(start: int, end: int, waiting_until: int, tries: Iterable[tuple[int, int]]) -> Iterator[Outage]:
    """The parts of a time without success in which somebody waited; short rests between retries belong to them."""
    for invoked, completed in tries:
        if invoked >= end:
            break
        if invoked > waiting_until + REST_NS or waiting_until <= start:
            if waiting_until > start:
                yield Outage(start, waiting_until)
            start = invoked
        waiting_until = max(waiting_until, completed)
    yield Outage(start, min(end, waiting_until))


def failover_times(pauses: list[Outage], faults: list[Fault]) -> dict[str, dict[str, int]]:
    """Per kind of fault: how often, and p50, p99 and maximum of the longest outage while it lasted, in ms.

    Counted from the fault, at most until the next fault begins; an outage that outlasts the fault counts whole.
    """
    ends = [pause.end_ns for pause in pauses]
    times: dict[str, list[int]] = defaultdict(list)
    for i, fault in enumerate(faults):
        until = min(t for t in (fault.end_ns, *(f.start_ns for f in faults[i + 1 : i + 2]), 1 << 62) if t is not None)
        longest = 0
        for pause in pauses[bisect_right(ends, fault.start_ns) :]:
            if pause.start_ns > max(until, fault.start_ns):
                break
            longest = max(longest, pause.end_ns - max(pause.start_ns, fault.start_ns))
        times[fault.kind].append(longest)
    return {kind: _spread(sorted(values)) for kind, values in sorted(times.items())}


def _spread(ordered: list[int]) -> dict[str, int]:
    p50, p99, longest = (round(quantile(ordered, share) / 1e6) for share in (0.5, 0.99, 1.0))
    return {"count": len(ordered), "p50": p50, "p99": p99, "max": longest}


def quantile(ordered: list[int], share: float) -> int:
    """The nearest rank: the smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _recovered(attempts: list[Operation], faults: list[Fault], findings: Findings) -> None:
    for fault in faults:
        if fault.end_ns is None:
            findings.doubt(f"the fault {fault.kind!r} on nodes {list(fault.nodes)} was never lifted")
            return
    last = max(faults, key=lambda fault: fault.end_ns or 0)
    after = [o for o in attempts if o.invoked.time_ns >= (last.end_ns or 0)]
    if not after:
        findings.doubt("nobody tried anything after the last fault was lifted")
    elif not any(o.outcome == "ok" for o in after):
        what = f"after the last fault, {last.kind!r}, was lifted, none of {len(after):,} operations succeeded"
        findings.add("no-recovery", what, (last.op, after[0].invoked.index))
