"""The picture of a run: phases, faults and leaders above throughput and latency, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jepsen_like.checkers.availability import Attempts, InjectedFault, Outage, faults_of, outages, quantile
from jepsen_like.checkers.history_steps import LEADER, NOT_CLIENTS, NOTES, PHASE, Operations
from jepsen_like.history import Operation
from jepsen_like.report.svg import Panel, Scale, decades, drawing, linear, logarithmic, mark, ticks

BINS = 240


class Series(NamedTuple):
    """Throughput and latency over time, from the operations of clients, with one value per bin; bins are equally long
    and start at `start_ns`."""

    start_ns: int
    bin_ns: int
    ok: list[int]
    """The number of operations that ended with ok in each bin; `fail` and `info` likewise."""
    fail: list[int]
    info: list[int]
    p50_ms: list[float | None]
    """Median latency of the operations that ended ok in this bin; None if there were none."""
    p99_ms: list[float | None]
    max_ms: list[float | None]

    def per_second(self, counts: list[int]) -> list[float | None]:
        """Returns counts per bin as rates per second."""
        return [count * 1e9 / self.bin_ns for count in counts]


def series_of(operations: list[Operation], start_ns: int, end_ns: int) -> Series:
    """Sorts completed operations into bins by the time of their completion."""
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


WIDTH, LEFT, RIGHT = 1120.0, 150.0, 1100.0
LANE, PLOT, GAP = 20.0, 150.0, 44.0
SHORTEST_OUTAGE_NS = 300_000_000


class Term(NamedTuple):
    """The time from which a node was seen to lead a term."""

    start_ns: int
    node: int
    term: int
    group: str


class Timeline(NamedTuple):
    """The content of the picture. Nanoseconds on the clock of the history."""

    start_ns: int
    end_ns: int
    phases: list[tuple[int, str]]
    faults: list[InjectedFault]
    terms: list[Term]
    outages: list[Outage]
    series: Series

    @classmethod
    def of(cls, operations: Operations) -> Timeline | None:
        """Returns the timeline of a history; None if no client did anything."""
        attempts = operations.of(*sorted(operations.kinds - NOT_CLIENTS))
        if not attempts:
            return None
        notes = operations.of(*sorted(NOTES))
        start = min(o.invoked.time_ns for o in (attempts[0], *notes[:1]))
        end = max(_last_ns(o) for some in (attempts, notes) for o in some)
        phases = [(o.invoked.time_ns, str(o.invoked.value["name"])) for o in operations.of(PHASE)]
        long = [outage for outage in outages(Attempts.of(attempts)) if outage.length_ns >= SHORTEST_OUTAGE_NS]
        series = series_of(attempts, start, end)
        return cls(start, end, phases, faults_of(operations), _terms(operations), long, series)

    def draw(self) -> str:
        """Returns the SVG of the timeline."""
        kinds = sorted({fault.kind for fault in self.faults})
        lanes_end = 16 + LANE * (len(kinds) + bool(self.phases) + len({term.group for term in self.terms}))
        rate_top = lanes_end + GAP - 14
        wait_top = rate_top + PLOT + GAP
        bottom = wait_top + PLOT
        seconds = (self.end_ns - self.start_ns) / 1e9
        x = linear(0, seconds, LEFT, RIGHT)
        marks = [
            *self._shades(x, 8, bottom),
            *self._lanes(x, kinds),
            *self._rates(Panel(rate_top, rate_top + PLOT, LEFT, RIGHT, x, x)),
            *self._waits(Panel(wait_top, bottom, LEFT, RIGHT, x, x)),
        ]
        for second in ticks(seconds, 12):
            marks.append(mark("line", x1=x(second), x2=x(second), y1=bottom, y2=bottom + 5, class_="axis"))
            marks.append(mark("text", f"{second:g} s", x=x(second), y=bottom + 20, class_="tick middle"))
        return drawing(WIDTH, bottom + 30, marks, "faults, leaders, throughput and latency over time")

    def _seconds(self, time_ns: int | None) -> float:
        end = self.end_ns if time_ns is None else min(max(time_ns, self.start_ns), self.end_ns)
        return (end - self.start_ns) / 1e9

    def _shades(self, x: Scale, top: float, bottom: float) -> Iterator[str]:
        for outage in self.outages:
            start, end = x(self._seconds(outage.start_ns)), x(self._seconds(outage.end_ns))
            tip = f"nothing succeeded for {outage.length_ns / 1e9:.2f} s"
            yield mark(
                "rect", tip=tip, x=start, y=top, width=max(end - start, 1.0), height=bottom - top, class_="outage"
            )

    def _lanes(self, x: Scale, kinds: list[str]) -> Iterator[str]:
        top = 8.0
        if self.phases:
            yield from self._lane("phase", top)
            ends = [*(start for start, _ in self.phases[1:]), self.end_ns]
            for i, ((start, name), end) in enumerate(zip(self.phases, ends, strict=True)):
                yield from self._bar(x, top, start, end, f"phase{i % 2}", name, name)
            top += LANE
        for kind in kinds:
            yield from self._lane(kind, top)
            for fault in self.faults:
                if fault.kind == kind:
                    nodes = ", ".join(map(str, fault.nodes))
                    tip = f"{kind} {nodes and f'of {nodes}'} {fault.detail}"
                    yield from self._bar(x, top, fault.start_ns, fault.end_ns, "fault", nodes, tip)
            top += LANE
        for group in sorted({term.group for term in self.terms}):
            yield from self._lane(f"leader {group}".strip(), top)
            terms = [term for term in self.terms if term.group == group]
            ends = [*(term.start_ns for term in terms[1:]), self.end_ns]
            for term, end in zip(terms, ends, strict=True):
                tip = f"node {term.node} leads in term {term.term}"
                yield from self._bar(x, top, term.start_ns, end, f"node{term.node % 6}", str(term.node), tip)
            top += LANE

    @staticmethod
    def _lane(name: str, top: float) -> Iterator[str]:
        yield mark("text", name, x=LEFT - 8, y=top + 13, class_="tick end")
        yield mark("line", x1=LEFT, x2=RIGHT, y1=top + LANE - 1, y2=top + LANE - 1, class_="grid")

    def _bar(
        self, x: Scale, top: float, start: int, end: int | None, class_: str, text: str, tip: str
    ) -> Iterator[str]:
        left, right = x(self._seconds(start)), x(self._seconds(end))
        width = max(right - left, 2.0)
        yield mark("rect", tip=tip, x=left, y=top + 1, width=width, height=LANE - 4, class_=f"bar {class_}")
        if text and width > 7.5 * len(text):
            yield mark("text", text, x=left + width / 2, y=top + 13, class_="inbar")

    def _points(self, values: list[float | None]) -> Iterator[tuple[float, float | None]]:
        step = self.series.bin_ns / 1e9
        last = self._seconds(None)
        return ((min((i + 0.5) * step, last), value) for i, value in enumerate(values) if i * step <= last)

    def _rates(self, panel: Panel) -> Iterator[str]:
        rates = {name: self.series.per_second(getattr(self.series, name)) for name in ("ok", "info", "fail")}
        highest = max(value or 0 for some in rates.values() for value in some) or 1
        values = ticks(highest, 4)
        panel = panel._replace(y=linear(0, highest * 1.05, panel.bottom, panel.top))
        yield from panel.frame("operations per second", values, lambda value: f"{value:,g}")
        yield from _legend(panel, [("ok", "ok"), ("unknown", "info"), ("failed", "fail")])
        for name in ("fail", "info", "ok"):
            if any(rates[name]):
                yield panel.line(self._points(rates[name]), name, f"{name} per second")

    def _waits(self, panel: Panel) -> Iterator[str]:
        series = self.series
        known = [value for value in (*series.p50_ms, *series.max_ms) if value]
        values, low, high = decades(min(known, default=1), max(known, default=10))
        panel = panel._replace(y=logarithmic(low, high, panel.bottom, panel.top))
        yield from panel.frame("latency of what succeeded", values, _milliseconds)
        yield from _legend(panel, [("p50", "p50"), ("p99", "p99"), ("max", "max")])
        yield panel.line(self._points(series.max_ms), "max", "slowest in a bin")
        yield panel.line(self._points(series.p99_ms), "p99", "99th percentile")
        yield panel.line(self._points(series.p50_ms), "p50", "median")


def _legend(panel: Panel, entries: list[tuple[str, str]]) -> Iterator[str]:
    x = panel.right - 90 * len(entries)
    for text, class_ in entries:
        yield mark("line", x1=x, x2=x + 18, y1=panel.top - 12, y2=panel.top - 12, class_=f"line {class_}")
        yield mark("text", text, x=x + 23, y=panel.top - 8, class_="tick")
        x += 90


def _milliseconds(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def _last_ns(operation: Operation) -> int:
    return (operation.completed or operation.invoked).time_ns


def _terms(operations: Operations) -> list[Term]:
    """Returns the changes of leader; the same node in the same term is listed once."""
    terms: list[Term] = []
    last: dict[str, tuple[int, int]] = {}
    for operation in operations.of(LEADER):
        value = operation.invoked.value
        group, leader = str(value.get("group", "")), (int(value["node"]), int(value["term"]))
        if last.get(group) != leader:
            last[group] = leader
            terms.append(Term(operation.invoked.time_ns, *leader, group))
    return terms
