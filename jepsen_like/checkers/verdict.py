"""The results of checkers: anomalies with their witnesses, a result per checker, one verdict per history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from jepsen_like.checkers.anomaly_kinds import KINDS, gravity
from jepsen_like.history import Op
from raftmq_wire.errors import ExitCode

Outcome = Literal["valid", "invalid", "unknown"]

EXIT_CODES: dict[Outcome, int] = {
    "valid": int(ExitCode.OK),
    "invalid": int(ExitCode.FAILED),
    "unknown": int(ExitCode.UNKNOWN),
}

WITNESSES_PER_KIND = 20
"""The most anomalies of a kind that are kept with their witness. Further ones are only counted, because one lost disk
may lose a million messages.
"""


class Anomaly(NamedTuple):
    """One proof that a promise was broken."""

    kind: str
    """The kind of anomaly, one of KINDS."""
    what: str
    """One sentence that names the place and both sides of the contradiction."""
    ops: tuple[int, ...]
    """The witness: indexes of the few steps of the history that contradict each other, or of the one that breaks a rule
    by itself.
    """
    node: int | None = None
    """The replica that shows the anomaly; None if no single replica does."""
    subject: str = ""
    """The message id, key or queue that the anomaly is about."""


class Findings:
    """Collects anomalies: counts all and keeps the first `limit` of each kind (None: all)."""

    def __init__(self, limit: int | None = WITNESSES_PER_KIND) -> None:
        self.counts: Counter[str] = Counter()
        self.kept: list[Anomaly] = []
        self.unknowns: list[str] = []
        self.tally: Counter[str] = Counter()
        """Further counts for the statistics."""
        self._limit = limit

    def add(self, kind: str, what: str, ops: Iterable[int], *, node: int | None = None, subject: str = "") -> None:
        """Counts one anomaly, and keeps it unless `limit` anomalies of its kind are kept."""
        assert kind in KINDS, kind
        is_kept = self.keeps(kind)
        self.counts[kind] += 1
        if is_kept:
            self.kept.append(Anomaly(kind, what, tuple(ops), node, subject))

    def keeps(self, kind: str) -> bool:
        """Returns True if the next anomaly of this kind would be kept; only then is a costly search for its witness
        worthwhile."""
        return self._limit is None or self.counts[kind] < self._limit

    def doubt(self, why: str) -> None:
        """Records that something could not be decided; without an anomaly the verdict is then unknown."""
        self.unknowns.append(why)

    def result(self, checker: str, stats: dict[str, Any], allowed: frozenset[str] = frozenset()) -> CheckerResult:
        """Returns the findings as the result of one checker."""
        return CheckerResult(checker, dict(self.counts), self.kept, self.unknowns, {**stats, **self.tally}, allowed)


class CheckerResult(NamedTuple):
    """The findings of one checker."""

    checker: str
    counts: dict[str, int]
    """Number of anomalies by kind, including those without a kept witness."""
    anomalies: Sequence[Anomaly]
    unknowns: Sequence[str]
    """Reasons why something could not be decided; empty if everything was decided."""
    stats: dict[str, Any]
    allowed: frozenset[str] = frozenset()
    """Kinds of anomaly that the workload declares to be no promise of the system under test."""

    @property
    def outcome(self) -> Outcome:
        """The outcome: "invalid" if any anomaly is not allowed, else "unknown" if anything was left undecided, else
        "valid".
        """
        if self.counts.keys() - self.allowed:
            return "invalid"
        return "unknown" if self.unknowns else "valid"


class Verdict(NamedTuple):
    """The judgement of all checkers of a workload on one history."""

    workload: str
    results: tuple[CheckerResult, ...]
    unknowns: tuple[str, ...] = ()
    """Doubts about the history as a whole: malformed steps, nothing acknowledged, a step that no checker judges."""

    @property
    def outcome(self) -> Outcome:
        """The outcome: "invalid" if any checker says so; else "unknown" if anything was left undecided or no checker
        ran; else "valid".
        """
        outcomes = {result.outcome for result in self.results}
        if "invalid" in outcomes:
            return "invalid"
        return "unknown" if self.unknowns or "unknown" in outcomes or not self.results else "valid"

    @property
    def exit_code(self) -> int:
        """The exit code: 0 valid, 1 invalid, 3 unknown, as everywhere in `raftmq`."""
        return EXIT_CODES[self.outcome]

    @property
    def anomalies(self) -> list[Anomaly]:
        """Every kept anomaly that counts against the system, the gravest kinds first."""
        found = [a for result in self.results for a in result.anomalies if a.kind not in result.allowed]
        return sorted(found, key=lambda anomaly: gravity(anomaly.kind))

    @property
    def counts(self) -> dict[str, int]:
        """Number of anomalies by kind over all checkers, without allowed ones."""
        total: Counter[str] = Counter()
        for result in self.results:
            total.update({kind: n for kind, n in result.counts.items() if kind not in result.allowed})
        return dict(total)

    @property
    def doubts(self) -> list[str]:
        """All reasons for which something was left undecided."""
        return [*self.unknowns, *(f"{result.checker}: {why}" for result in self.results for why in result.unknowns)]

    def result(self, checker: str) -> CheckerResult:
        """Returns the result of one checker. Raises KeyError if the workload does not use it."""
        for result in self.results:
            if result.checker == checker:
                return result
        raise KeyError(checker)

    def to_json(self) -> dict[str, Any]:
        """Returns the verdict as plain JSON."""
        return {
            "verdict": self.outcome,
            "workload": self.workload,
            "anomalies": self.counts,
            "unknown": self.doubts,
            "checkers": [
                {
                    "checker": result.checker,
                    "verdict": result.outcome,
                    "counts": result.counts,
                    "allowed": sorted(result.allowed & result.counts.keys()),
                    "anomalies": [anomaly._asdict() for anomaly in result.anomalies],
                    "unknown": list(result.unknowns),
                    "stats": result.stats,
                }
                for result in self.results
            ],
        }

    def text(self, ops: Sequence[Op] = (), shown: int = 3) -> str:
        """Returns the verdict as text for people: `shown` anomalies of each kind, with their steps if `ops` is the
        history."""
        lines = [f"{self.outcome} ({self.workload})"]
        lines += [f"  unknown: {why}" for why in self.unknowns]
        for result in self.results:
            lines.append(f"  {result.checker:<16} {result.outcome:<8} {_pairs(result.stats)}")
            lines += [f"    unknown: {why}" for why in result.unknowns[:shown]]
            printed: Counter[str] = Counter()
            for anomaly in sorted(result.anomalies, key=lambda anomaly: gravity(anomaly.kind)):
                printed[anomaly.kind] += 1
                if printed[anomaly.kind] == 1:
                    grace = " (allowed)" if anomaly.kind in result.allowed else ""
                    lines.append(f"    {anomaly.kind}: {result.counts[anomaly.kind]:,}{grace}")
                if printed[anomaly.kind] <= shown:
                    lines.append(f"      {anomaly.what}")
                    lines += [
                        f"        {describe(ops[index], anomaly.subject)}" for index in anomaly.ops if index < len(ops)
                    ]
        return "\n".join(lines)


def brief(value: Any, about: str = "", around: int = 2) -> str:
    """Returns a step's value as JSON. Shortens a long list of messages to the rows around the message whose id is
    `about`; if it is not in the list, to the first and last `around` rows.
    """
    if isinstance(value, dict) and isinstance(rows := value.get("messages"), list) and len(rows) > 2 * around + 2:
        middle = next((i for i, row in enumerate(rows) if isinstance(row, list) and row[-1:] == [about]), None)
        if middle is None:
            some = [*rows[:around], "…", *rows[-around:]]
        else:
            start = max(0, min(middle - around, len(rows) - 2 * around - 1))
            some = ["…", *rows[start : start + 2 * around + 1], "…"]
        value = {**value, "messages": [*some, f"{len(rows):,} in all"]}
    return msgspec.json.encode(value).decode()


def describe(op: Op, about: str = "", width: int = 240) -> str:
    """Returns one step as one line: index, seconds, process, type, operation, value."""
    value = brief(op.value, about)
    line = f"{op.index:>8} {op.time_ns / 1e9:>12.6f}s  process {op.process:<8} {op.type:<6} {op.f} {value}"
    return line if len(line) <= width else line[: width - 1] + "…"


def _pairs(stats: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in stats.items() if isinstance(value, int))
