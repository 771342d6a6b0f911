"""Runs the checkers over the history, and summarizes their findings in one line per kind of anomaly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jepsen_like.checkers.compose import check
from jepsen_like.checkers.verdict import Verdict
from jepsen_like.checkers.workload import WORKLOADS
from jepsen_like.history import Op

SHOWN = 3
WORKLOAD = "log"


_DENIED = "has no right to"


class Judgement(NamedTuple):
    """The judgement on a run's history. `broken`: the broken promises with their proof, one line per kind of anomaly.
    `doubts`: reasons why something could not be decided.
    """

    broken: list[str]
    doubts: list[str]
    checked: Verdict
    """The verdict with the findings of every checker."""


def judge(ops: Sequence[Op], replicas: int) -> Judgement:
    """Runs all checkers of the log workload over a whole history; every replica must have been read back."""
    verdict = check(ops, WORKLOADS[WORKLOAD]._replace(replicas=replicas))
    first: dict[str, list[str]] = {}
    for anomaly in verdict.anomalies:
        first.setdefault(anomaly.kind, []).append(anomaly.what)
    broken = [
        f"{count:,} {kind}: {'; '.join(first.get(kind, [])[:SHOWN])}{'; …' * (count > SHOWN)}"
        for kind, count in verdict.counts.items()
    ]
    return Judgement(broken, verdict.doubts, verdict)


def denials(ops: Sequence[Op]) -> list[str]:
    """Returns [one line of doubt] if nodes denied requests of the load because its user lacked a right, so that the run
    tried less than planned; else [].
    """
    errors = [str(op.value.get("error", "")) for op in ops if op.type in ("fail", "info")]
    denied = [error for error in errors if _DENIED in error]
    return [f"{len(denied):,} requests of the load were denied, the first: {denied[0]}"] if denied else []
