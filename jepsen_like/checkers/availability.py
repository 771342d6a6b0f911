"""The availability checker: outages as clients saw them, and how long after each fault operations succeeded again."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from operator import sub
from typing import Any, NamedTuple

from jepsen_like.checkers.history_steps import FAULT, Operations, values_of
from jepsen_like.checkers.verdict import CheckerResult, Findings
from jepsen_like.checkers.workload import Workload
from jepsen_like.history import Operation

NAME = "availability"

REST_NS = 2_000_000_000
"""The longest gap, in nanoseconds, between the end of all earlier attempts and the next attempt that is still a part of
one outage.
"""


class Outage(NamedTuple):
    """A period in which clients tried and no operation succeeded. Nanoseconds on the clock of the history."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """The duration of the outage, in nanoseconds."""
        return self.end_ns - self.start_ns


class InjectedFault(NamedTuple):
    """One fault that was injected during the run."""

    kind: str
    nodes: tuple[int, ...]
    detail: str
    start_ns: int
    end_ns: int | None
    """The time at which the fault was lifted; None if it never was."""
    op: int


class Attempts:
    """The times at which clients tried operations, as columns."""

    def __init__(self) -> None:
        self.invoked = array("q")
        """Indexes of the invocation steps of the attempts. The other columns hold times in nanoseconds on the clock of
        the history.
        """
        self.invoked_ns = array("q")
        self.ended_ns = array("q")
        self.successes = array("q")
        """The times at which successful operations ended, ascending."""
        self._unsuccessful: set[int] = set()

    @classmethod
    def of(cls, operations: list[Operation]) -> Attempts:
        """Gathers the attempts from operations in any order."""
        self = cls()
        self.add([operation for operation in operations if operation.completed is not None])
        self.close([operation for operation in operations if operation.completed is None])
        return self

    def add(self, completed: list[Operation]) -> None:
        """Adds operations that completed."""
        ended = [done.time_ns for _, done in completed if done is not None]
        outcomes = [done.type for _, done in completed if done is not None]
        self.invoked.extend([asked.index for asked, _ in completed])
        self.invoked_ns.extend([asked.time_ns for asked, _ in completed])
        self.ended_ns.extend(ended)
        if outcomes.count("ok") == len(outcomes):
            self.successes.extend(ended)
        else:
            good = [time_ns for time_ns, outcome in zip(ended, outcomes, strict=True) if outcome == "ok"]
            self.successes.extend(good)
            self._unsuccessful.update(operation[0].index for operation in completed if operation.outcome != "ok")

    def close(self, still_open: list[Operation]) -> None:
        """Adds the operations that never completed. They count as waiting until the last attempt began. Sorts the
        columns: `successes` by time, the others by invocation.
        """
        self.invoked.extend([asked.index for asked, _ in still_open])
        self.invoked_ns.extend([asked.time_ns for asked, _ in still_open])
        self.ended_ns.extend([max(self.invoked_ns, default=0)] * len(still_open))
        self._unsuccessful.update(asked.index for asked, _ in still_open)
        self.successes = array("q", sorted(self.successes))
        order = sorted(range(len(self.invoked)), key=self.invoked.__getitem__)
        self.invoked, self.invoked_ns, self.ended_ns = (
            array("q", list(map(column.__getitem__, order)))
            for column in (self.invoked, self.invoked_ns, self.ended_ns)
        )

    def any_success_since(self, position: int) -> bool:
        """Returns True if an attempt succeeded that was invoked at this position, in order of invocation, or later."""
        return any(index not in self._unsuccessful for index in islice(self.invoked, position, None))


def check(operations: Operations, attempts: Attempts, workload: Workload) -> CheckerResult:
    """Measures outages and failover times. Reports one kind of anomaly, `no-recovery`: the workload requires recovery,
    but no operation succeeded after the last fault was lifted.
    """
    findings = Findings()
    faults = faults_of(operations)
    pauses = outages(attempts)
    long = [pause for pause in pauses if pause.length_ns > workload.unavailable_after_ns]
    if workload.must_recover and faults and attempts.invoked:
        _recovered(attempts, faults, findings)
    stats: dict[str, Any] = {
        "faults": len(faults),
        "outages": len(long),
        "outage_ms": round(sum(pause.length_ns for pause in long) / 1e6),
        "longest_ms": round(max((pause.length_ns for pause in long), default=0) / 1e6),
        "failover_ms": failover_times(pauses, faults),
    }
    return findings.result(NAME, stats, workload.allowed)


def faults_of(operations: Operations) -> list[InjectedFault]:
    """Returns every fault in order of its start."""
    faults = []
    with values_of(operations.of(FAULT)) as watched:
        for operation in watched:
            value, lifted = operation.invoked.value, operation.completed
            told = lifted.value if lifted is not None and lifted.value else value
            detail = str(told.get("detail", value.get("detail", "")))
            nodes = tuple(int(node) for node in value["nodes"])
            end = lifted.time_ns if lifted is not None and lifted.type == "ok" else None
            start = operation.invoked
            faults.append(InjectedFault(str(value["kind"]), nodes, detail, start.time_ns, end, start.index))
    return faults


def outages(attempts: Attempts, at_least_ns: int = 1_000_000) -> list[Outage]:
    """Returns the periods without a success that were longer than `at_least_ns` and in which clients were waiting or
    trying.

    An outage begins when a client was first left waiting: a period in which no client asked anything is no outage.
    """
    if not attempts.invoked:
        return []
    invoked, ends = attempts.invoked_ns, attempts.ended_ns
    latest_end = list(accumulate(ends, max))
    marks = [invoked[0], *attempts.successes, max(latest_end[-1], invoked[-1])]
    lengths = map(sub, islice(marks, 1, None), marks)
    found: list[Outage] = []
    for i in [i for i, length in enumerate(lengths) if length > at_least_ns]:
        position = bisect_right(invoked, marks[i])
        waiting_until = latest_end[position - 1] if position else marks[i]
        if waiting_until >= marks[i + 1]:  # The whole period is nearly always one outage.
            found.append(Outage(marks[i], marks[i + 1]))
            continue
        tries = ((invoked[k], ends[k]) for k in range(position, len(invoked)))
        found += _waited(marks[i], marks[i + 1], waiting_until, tries)
    return [outage for outage in found if outage.length_ns > at_least_ns]


def _waited(start: int, end: int, waiting_until: int, tries: Iterable[tuple[int, int]]) -> Iterator[Outage]:
    """Yields the parts of a period without success in which some client waited. Rests of up to REST_NS between retries
    are a part of the outage.
    """
    for invoked, completed in tries:
        if invoked >= end:
            break
        if invoked > waiting_until + REST_NS or waiting_until <= start:
            if waiting_until > start:
                yield Outage(start, waiting_until)
            start = invoked
        waiting_until = max(waiting_until, completed)
    yield Outage(start, min(end, waiting_until))


def failover_times(pauses: list[Outage], faults: list[InjectedFault]) -> dict[str, dict[str, int]]:
    """Returns for each kind of fault its count, and p50, p99 and maximum of the longest outage during it, in ms.

    An outage counts for a fault if it ends after the fault began, and begins before the fault was lifted and before the
    next fault began. It is measured from the start of the fault, or from its own start if that is later, to its end.
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
    """Returns a quantile of ascending values by the nearest rank: the smallest value that is at least as large as this
    share of the values. Raises IndexError if there are no values.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _recovered(attempts: Attempts, faults: list[InjectedFault], findings: Findings) -> None:
    for fault in faults:
        if fault.end_ns is None:
            findings.doubt(f"the fault {fault.kind!r} on nodes {list(fault.nodes)} was never lifted")
            return
    last = max(faults, key=lambda fault: fault.end_ns or 0)
    lifted_ns = last.end_ns or 0
    first = bisect_left(attempts.invoked_ns, lifted_ns)
    if first == len(attempts.invoked_ns):
        findings.doubt("no operation was tried after the last fault was lifted")
    elif not attempts.any_success_since(first):
        count = len(attempts.invoked_ns) - first
        what = f"after the last fault, {last.kind!r}, was lifted, none of {count:,} operations succeeded"
        findings.add("no-recovery", what, (last.op, attempts.invoked[first]))
