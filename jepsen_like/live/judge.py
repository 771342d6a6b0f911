"""Hands the history to the checkers and gathers what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.checker_log import LogVerdict, check_log, summary
from jepsen_like.history import HistoryWriter

SHOWN = 5


class Judgement(NamedTuple):
    """`broken`: promises with their proof, one line each. `doubts`: what could not be decided."""

    broken: list[str]
    doubts: list[str]
    details: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """What every checker found."""
        return self.details


def judge(folder: Path, history: HistoryWriter, replicas: int) -> Judgement:
    """`folder` holds history.jsonl, closed."""
    verdict = check_log(history.ops)
    kinds = ("lost", "duplicated", "reordered", "phantom")
    broken = [f"{count} {kind}: {_first(verdict, kind)}" for kind in kinds if (count := verdict.count(kind))]
    doubts = [f"{item.topic}/{item.queue_id} on node {item.node} not read to its end" for item in verdict.incomplete]
    if len(verdict.read) < replicas:
        doubts.append(f"only {len(verdict.read)} of {replicas} replicas were read back")
    if not verdict.acked:
        doubts.append("nothing was acknowledged")
    return Judgement(broken, doubts, {"log": summary(verdict)})


def _first(verdict: LogVerdict, kind: str) -> str:
    found = [anomaly for anomaly in verdict.anomalies if anomaly.kind == kind]
    return "; ".join(f"{a.message_id} ({a.what})" for a in found[:SHOWN]) + ("; …" if len(found) > SHOWN else "")
