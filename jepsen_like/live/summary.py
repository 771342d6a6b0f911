"""The summary of a run for people: counts, a table of the faults, the gates, and the reasons of the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jepsen_like.live.outcome import RunFindings
from jepsen_like.live.plan import Plan


def lines(outcome: RunFindings, plan: Plan) -> Iterator[str]:
    """Yields all lines except for the verdict itself, which `last_line` returns."""
    told = outcome.to_json(plan)
    counts = outcome.counts
    yield (
        f"{counts.acked:,} acknowledged, {counts.failed:,} failed, {counts.unknown:,} unknown"
        f" ({told['unknown_percent'] or 0:.2f} %); {outcome.rows_read:,} rows read back from all replicas"
    )
    recovery = told["recovery_ms"]
    times = f"; recovery median {recovery['median']} ms, max {recovery['max']} ms" if outcome.played else ""
    yield (
        f"{len(outcome.played)} faults, {outcome.leader_changes} leader changes, {outcome.kills} kills,"
        f" {outcome.power_failures} power failures{times}"
    )
    yield from _table(outcome)
    yield from _gates(outcome, plan)
    short = {name: value for name, value in outcome.measured.items() if not isinstance(value, list)}
    yield from (f"  measured: {name} {value}" for name, value in short.items())
    if outcome.story:
        yield "how one of them was lost:"
        yield from (f"  {line}" for line in outcome.story)
    yield from (f"  - {reason}" for reason in outcome.reasons)


def last_line(outcome: RunFindings, plan: Plan, folder: Path) -> str:
    """Returns the verdict, with the missed gates of a full run."""
    missed = outcome.missed(plan)
    less = f", but less than a full run must show: {', '.join(gate.name for gate in missed)}" if missed else ""
    return f"{outcome.verdict.value}{less}    ({folder})"


def _table(outcome: RunFindings) -> Iterator[str]:
    if not outcome.faults:
        return
    width = max(map(len, outcome.faults))
    yield f"  {'fault':<{width}} applied    felt"
    for name, (applied, felt) in outcome.faults.items():
        yield f"  {name:<{width}} {applied:>7} {felt:>7}"


def _gates(outcome: RunFindings, plan: Plan) -> Iterator[str]:
    if not outcome.gates:
        return
    less = f"scale {plan.scale:g}" if plan.is_scripted else f"{plan.time_s:g} s of {plan.full_s:g} s"
    less += f", scale {plan.scale:g}" if plan.story is not None and not plan.is_scripted else ""
    share = "" if plan.gates_count else f" at {less}: they do not count yet"
    yield f"gates{share}: {sum(gate.holds for gate in outcome.gates)} of {len(outcome.gates)} hold"
    yield from (f"  {gate.line}" for gate in outcome.gates)
