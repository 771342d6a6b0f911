"""`make bench-compare REV=...`: runs `make bench` on that commit and on this tree in turns, on the same machine.

Prints the median of ROUNDS (5) rounds for each row and their ratio; with JSON=1 only {"base": ..., "rows": [...]}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench_instructions import ROOT, git, tree_of
from rich.progress import track
from rich.table import Table
from tables import console

BENCH = Path("bench", "bench_cluster.py")
KEY = ("size", "batch", "in_flight")
FIGURES = ("messages_per_second", "p50_ms", "p99_ms", "cpu_us_per_message")
PATIENCE_S = 300.0


def measured(tree: Path) -> dict[tuple[int, ...], dict[str, float]]:
    """Measures one round of `make bench` in a tree; returns the row's load -> its figures."""
    done = subprocess.run(
        [sys.executable, "-P", str(tree / BENCH)],
        env={**os.environ, "PYTHONPATH": str(tree), "JSON": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["rows"]
    return {tuple(row[name] for name in KEY): row for row in rows}


def main() -> None:
    """Measures both trees in turns and prints the comparison."""
    revision, rounds = os.environ.get("REV"), int(os.environ.get("ROUNDS") or "5")
    if not revision:
        raise SystemExit("name the commit to compare with: make bench-compare REV=HEAD~1")
    base = git("rev-parse", revision)
    quiet = bool(os.environ.get("JSON"))
    with tree_of(base) as old:
        found: dict[Path, list[dict[tuple[int, ...], dict[str, float]]]] = {old: [], ROOT: []}
        for number in track(range(rounds), "rounds", disable=quiet):
            for tree in (old, ROOT) if number % 2 else (ROOT, old):
                found[tree].append(measured(tree))
    rows = []
    for load in found[ROOT][0]:
        row: dict[str, Any] = dict(zip(KEY, load, strict=True))
        for name in FIGURES:
            before, now = (median(one[load][name] for one in found[tree]) for tree in (old, ROOT))
            row[name] = {"before": before, "now": now, "ratio": now / before if before else 1.0}
        rows.append(row)
    report(base, rows, quiet=quiet)


def report(base: str, rows: list[dict[str, Any]], *, quiet: bool) -> None:
    """Prints the comparison with the commit `base`: as tables, or as JSON with JSON=1."""
    if quiet:
        print(json.dumps({"base": base, "rows": rows}))
        return
    table = Table(*KEY, *FIGURES, title=f"medians: now (times that of {base[:9]})")
    for row in rows:
        cells = [f"{row[name]['now']:,} ({row[name]['ratio']:.2f})" for name in FIGURES]
        table.add_row(*[str(row[name]) for name in KEY], *cells)
    console().print(table)


if __name__ == "__main__":
    main()
