"""The outcome of a run: counts, faults, gates, the verdict with its reasons; and the files that contain it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.checkers.verdict import Outcome
from jepsen_like.history import Op
from jepsen_like.live.conclusion import GATE_CODE, Conclusion
from jepsen_like.live.judge import Judgement
from jepsen_like.live.nemeses.coverage_gates import Gate
from jepsen_like.live.nemeses.nemesis_interface import Counts, Effect
from jepsen_like.live.plan import Plan

HEAL_S = 60.0
UNKNOWN_SHARE_MAX = 0.02
"""Highest share of sends with unknown outcome; a run with more proves too little."""


_OUTCOMES: dict[Conclusion, Outcome] = {
    Conclusion.VALID: "valid",
    Conclusion.INVALID: "invalid",
    Conclusion.UNKNOWN: "unknown",
}


class Played(NamedTuple):
    """One fault that was applied during the run, with its effect."""

    name: str
    effect: Effect
    at_s: float
    took_s: float
    recovered_s: float | None
    """Seconds until all nodes agreed on a leader again; None if they did not in time."""


class RunFindings(NamedTuple):
    """Everything that a run found."""

    verdict: Conclusion
    reasons: list[str]
    counts: Counts
    played: list[Played]
    leader_changes: int
    kills: int
    power_failures: int
    rows_read: int
    judgement: Judgement
    skipped: dict[str, str]
    seconds: float
    story: list[str]
    """The explanation of one lost message, step by step; empty if none is lost."""
    faults: dict[str, tuple[int, int]]
    """Fault -> (how often it was applied, how often it had an effect)."""
    gates: list[Gate]
    """The gates of the random mix or of the scenario; empty if the user chose single faults."""
    measured: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Further measurements of a scripted scenario."""

    def missed(self, plan: Plan) -> list[Gate]:
        """Returns the gates that a run of this length had to meet and did not."""
        return [gate for gate in self.gates if not gate.holds] if plan.gates_count else []

    def exit_code(self, plan: Plan) -> int:
        """Returns the exit code of the verdict; 7 if it is valid and a gate was missed."""
        return GATE_CODE if self.verdict is Conclusion.VALID and self.missed(plan) else self.verdict.exit_code

    def to_json(self, plan: Plan) -> dict[str, Any]:
        """Returns the outcome as JSON, for the last line of `--json` and verdict.json."""
        done = self.counts.acked + self.counts.failed + self.counts.unknown
        recovered = sorted(each.recovered_s for each in self.played if each.recovered_s is not None)
        return {
            "schema": 1,
            "verdict": self.verdict.value,
            "reasons": self.reasons,
            "subject": plan.subject,
            "scenario": plan.scenario.name if plan.scenario else None,
            "seed": plan.seed,
            "repeat": plan.command,
            "seconds": round(self.seconds, 1),
            "acked": self.counts.acked,
            "failed": self.counts.failed,
            "unknown": self.counts.unknown,
            "unknown_percent": round(100 * self.counts.unknown / done, 3) if done else None,
            "rows_read": self.rows_read,
            "leader_changes": self.leader_changes,
            "kills": self.kills,
            "power_failures": self.power_failures,
            "recovery_ms": {
                "median": round(1000 * recovered[len(recovered) // 2]) if recovered else None,
                "max": round(1000 * recovered[-1]) if recovered else None,
            },
            "faults": {name: {"played": n, "with_effect": felt} for name, (n, felt) in self.faults.items()},
            "gates": [gate._asdict() | {"holds": gate.holds} for gate in self.gates],
            "gates_count": plan.gates_count,
            "measured": self.measured,
            "skipped": self.skipped,
            "story": self.story,
            "checks": self.judgement.checked.to_json(),
        }


def conclude(
    plan: Plan, counts: Counts, played: Sequence[Played], broken: Sequence[str], doubts: Sequence[str]
) -> tuple[Conclusion, list[str]]:
    """Returns the verdict and all its reasons. `broken` promises, and those that a fault saw broken, make it invalid;
    any doubt makes it unknown; only without either is it valid."""
    broken = [*broken, *(f"{each.name} at {each.at_s:.1f} s: {what}" for each in played for what in each.effect.broken)]
    reasons = [*broken, *doubts]
    felt = {each.name for each in played if each.effect.happened}
    never = sorted({each.name for each in played} - felt)
    reasons += [f"{name} never had a measurable effect" for name in never]
    if plan.nemeses and not played:
        reasons.append("no fault was played: the time was too short")
    done = counts.acked + counts.failed + counts.unknown
    if counts.unknown > UNKNOWN_SHARE_MAX * done:
        reasons.append(f"{counts.unknown} of {done} sends are of unknown outcome")
    reasons += [
        f"not well again {HEAL_S:.0f} s after {each.name} at {each.at_s:.1f} s"
        for each in played
        if each.recovered_s is None
    ]
    if broken:
        return Conclusion.INVALID, reasons
    return (Conclusion.UNKNOWN if reasons else Conclusion.VALID), reasons


def write_outcome(folder: Path, outcome: RunFindings, plan: Plan, ops: Sequence[Op]) -> None:
    """Writes verdict.json and report.html."""
    from jepsen_like.report import RunInfo, machine_facts, write_report

    told = outcome.to_json(plan)
    (folder / "verdict.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    facts = {name: value for name, value in told.items() if isinstance(value, str | int | float) and name != "schema"}
    facts |= {f"fault {name}": f"applied {n}, felt {felt}" for name, (n, felt) in outcome.faults.items()}
    facts |= {f"gate {gate.name}": gate.line for gate in outcome.gates}
    facts |= {
        f"measured {name}": value if isinstance(value, str | int | float) else json.dumps(value)
        for name, value in outcome.measured.items()
        if not isinstance(value, list)
    }
    facts |= {f"skipped {name}": why for name, why in outcome.skipped.items()}
    what = plan.scenario.name if plan.scenario is not None else "mix of faults"
    run = RunInfo(
        f"chaos {plan.subject}, {what}, seed {plan.seed}: {outcome.verdict.value}",
        plan.command,
        facts=facts,
        machine=machine_facts(),
        verdict=_OUTCOMES[outcome.verdict],
        reasons=[*outcome.reasons, *(f"less than a full run must show: {gate.line}" for gate in outcome.missed(plan))],
        explanation="\n".join(outcome.story),
    )
    write_report(folder / "report.html", run, ops, outcome.judgement.checked)
