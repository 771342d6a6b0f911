"""Writes the report: one self-contained HTML page with the verdict first, then the picture, then the proofs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from jepsen_like.checkers.anomaly_kinds import KINDS, gravity
from jepsen_like.checkers.history_steps import MalformedStep, Operations
from jepsen_like.checkers.messages import Messages
from jepsen_like.checkers.verdict import Anomaly, CheckerResult, Verdict
from jepsen_like.history import Op, pair_up
from jepsen_like.report.anomaly_drawing import Witnesses
from jepsen_like.report.run_info import RunInfo
from jepsen_like.report.style import STYLE
from jepsen_like.report.timeline import Timeline

SHOWN_PER_KIND = 3
DOUBTS_SHOWN = 20

_SAYS = {
    "valid": "Every checked guarantee held.",
    "invalid": "At least one guarantee was broken.",
    "unknown": "Nothing is proven: something could not be decided.",
}


def write_report(path: Path, run: RunInfo, history: Sequence[Op], verdict: Verdict) -> None:
    """Writes the page for one run; replaces the file if there is one."""
    path.write_text("".join(page(run, history, verdict)), encoding="utf-8")


def page(run: RunInfo, history: Sequence[Op], verdict: Verdict) -> Iterator[str]:
    """Yields the page in pieces. A history that cannot be understood still gets a page, without picture and proofs."""
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(run.title)}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><main>'
    yield from _head(run, verdict)
    try:
        operations = pair_up(history, lambda op, why: MalformedStep(op.index, why))
        by_kind = Operations(operations)
        timeline = Timeline.of(by_kind)
        witnesses = Witnesses(history, operations, Messages.of(by_kind))
    except (MalformedStep, KeyError, TypeError, ValueError) as error:
        yield f"<p>The history cannot be drawn: {escape(str(error))}</p>"
    else:
        if timeline is not None:
            yield f"<section><h2>What happened</h2>{timeline.draw()}"
            yield "<p class=quiet>Red: clients waited and nothing succeeded. Rest the pointer on a bar for details.</p>"
            yield "</section>"
        yield from _anomalies(verdict, witnesses)
    if run.explanation:
        yield "<section><h2>Step by step</h2>"
        yield "".join(f"<p>{escape(part)}</p>" for part in run.explanation.split("\n\n")) + "</section>"
    yield from _checkers(verdict)
    yield f"<section><h2>Do it again</h2><pre>{escape(run.replay)}</pre></section>"
    yield "<section><h2>The run</h2>" + _facts(run.facts) + "</section>" if run.facts else ""
    yield "<section><h2>The machine</h2>" + _facts(run.machine) + "</section>" if run.machine else ""
    yield "</main></body></html>\n"


def _head(run: RunInfo, verdict: Verdict) -> Iterator[str]:
    outcome = run.verdict or verdict.outcome
    yield f'<header class="{outcome}"><div class="badge">{outcome}</div><div>'
    yield f"<h1>{escape(run.title)}</h1><p>{_SAYS[outcome]} Workload <b>{escape(verdict.workload)}</b>"
    yield f", {escape(run.started)}.</p>" if run.started else ".</p>"
    for kind, count in sorted(verdict.counts.items(), key=lambda item: gravity(item[0])):
        yield f'<a class="chip bad" href="#{escape(kind)}">{escape(kind)} {count:,}</a>'
    doubts = list(dict.fromkeys([*run.reasons, *verdict.doubts]))
    for doubt in doubts[:DOUBTS_SHOWN]:
        yield f'<p class="doubt">{escape(doubt)}</p>'
    if len(doubts) > DOUBTS_SHOWN:
        yield f'<p class="doubt">and {len(doubts) - DOUBTS_SHOWN:,} more</p>'
    yield "</div></header>"


def _anomalies(verdict: Verdict, witnesses: Witnesses) -> Iterator[str]:
    kinds: dict[str, list[Anomaly]] = {}
    for anomaly in verdict.anomalies:
        kinds.setdefault(anomaly.kind, []).append(anomaly)
    if kinds:
        yield "<section><h2>What was broken</h2>"
        for kind, found in kinds.items():
            shown = found[:SHOWN_PER_KIND]
            of = f", {len(shown)} of {verdict.counts[kind]:,} shown" if verdict.counts[kind] > len(shown) else ""
            yield f'<h3 id="{escape(kind)}">{escape(kind)}<span class=quiet>: {KINDS[kind]}{of}</span></h3>'
            yield from (f"<article>{witnesses.html(anomaly)}</article>" for anomaly in shown)
        yield "</section>"


def _checkers(verdict: Verdict) -> Iterator[str]:
    yield "<section><h2>Checkers</h2><table><tr><th>checker<th>verdict<th>anomalies<th>counted"
    for result in verdict.results:
        yield f'<tr><td>{result.checker}<td><span class="chip {result.outcome}">{result.outcome}</span>'
        yield f"<td>{_counts(result)}<td>{escape(_stats(result.stats))}"
    yield "</table>"
    for result in verdict.results:
        times = result.stats.get("failover_ms")
        if times:
            yield "<h3>Time without success after each fault</h3>"
            yield "<table><tr><th>fault<th>times<th>p50<th>p99<th>longest"
            for kind, row in times.items():
                yield f"<tr><td>{escape(kind)}<td class=n>{row['count']}"
                yield "".join(f"<td class=n>{row[name]:,} ms" for name in ("p50", "p99", "max"))
            yield "</table>"
    yield "</section>"


def _counts(result: CheckerResult) -> str:
    if not result.counts:
        return "none"
    grace = {kind: " (allowed)" if kind in result.allowed else "" for kind in result.counts}
    return escape(", ".join(f"{kind} {count:,}{grace[kind]}" for kind, count in result.counts.items()))


def _stats(stats: Mapping[str, object]) -> str:
    def words(items: Iterable[tuple[str, object]]) -> Iterator[str]:
        for key, value in items:
            if isinstance(value, int):
                yield f"{key.replace('_', ' ')} {value:,}"
            elif isinstance(value, dict) and all(isinstance(count, int) for count in value.values()):
                yield f"{key} " + ", ".join(f"{node}: {count:,}" for node, count in value.items())

    return " · ".join(words(stats.items()))


def _say(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(facts: Mapping[str, object]) -> str:
    rows = "".join(f"<tr><th>{escape(str(key))}<td>{escape(_say(value))}" for key, value in facts.items())
    return f'<table class="facts">{rows}</table>'
