"""`make mutants`: draws mutants, judges them, lists the survivors; goes on where the last run ended."""

from __future__ import annotations

import hashlib
import queue
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import click

from jepsen_like.mutants import records
from jepsen_like.mutants.drawing import drawn
from jepsen_like.mutants.judging import judge, measure
from jepsen_like.mutants.reach import Reach
from jepsen_like.mutants.records import COUNTED, DRAWN, KILLED, SURVIVED, TIMED_OUT, Row
from jepsen_like.mutants.workshop import Workshop
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT

DRAW = 2
"""So many times as many as must count are drawn: of three, one does not type-check."""


REACH = SOURCE_ROOT / "build" / "mutants"
"""What runs where, a file for each record: git knows nothing of it."""


class Campaign:
    """One run: workshops, and the record that it goes on with."""

    def __init__(self, out: Path, rows: dict[records.Key, Row], jobs: int, folder: Path) -> None:
        self._out = out
        self._reach = Reach(REACH / f"{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]}.json")
        self._jobs = jobs
        self.rows = rows
        self._commit = _commit()
        self._workshops: queue.Queue[Workshop] = queue.Queue()
        for job in range(jobs):
            root = folder / str(job)
            root.mkdir()
            self._workshops.put(Workshop(root))

    def measure(self) -> None:
        """Finds out which tests and seeds can notice a mutant. Of all rows: what is known holds for the next run."""
        measure([row for row in self.rows.values() if _is_there(row)], self._workshops.queue[0], self._reach)

    def run(self, rows: list[Row]) -> None:
        """Judges these."""
        with ThreadPoolExecutor(self._jobs) as pool:
            for row in pool.map(self._judge, rows):
                self.rows[row.key] = row
                records.save(self._out, self.rows.values())
                click.echo(f"{row.status:<12} {row.seconds:>6.1f} s  {row.name}  {row.by}")

    def _judge(self, row: Row) -> Row:
        workshop = self._workshops.get()
        try:
            return judge(row, workshop, self._reach)._replace(commit=self._commit)
        finally:
            self._workshops.put(workshop)


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=SOURCE_ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _is_there(row: Row) -> bool:
    path = SOURCE_ROOT / row.file
    return path.exists() and row.applied(path.read_text()) is not None


def _draw(seed: str, count: int, only: tuple[str, ...]) -> dict[records.Key, Row]:
    found: dict[records.Key, Row] = {}
    for mutant in islice(drawn(SOURCE_ROOT, int(seed, 16), only), DRAW * count):
        text = (SOURCE_ROOT / mutant.site.file).read_text()
        try:
            row = records.row_of(mutant.site.file, mutant.name, text, mutant.applied(text))
        except ValueError:
            continue  # an operator that finds nothing to change
        found[row.key] = row
    return found


def _is_due(row: Row, *, again: bool) -> bool:
    if row.status == DRAWN:
        return True
    unanswered = row.status in (SURVIVED, TIMED_OUT) and (row.file, row.change) not in records.reasons()
    return again and unanswered


@click.command()
@click.option("--seed", default="6a2b3fae", show_default=True, help="Hexadecimal; the first digits of a commit.")
@click.option("--count", default=200, show_default=True, type=click.IntRange(min=1), help="Mutants that count.")
@click.option("--file", "only", multiple=True, help="Draw from these files alone (repeatable).")
@click.option("--minutes", type=click.FloatRange(min=0), help="Stop after about this long; the next run goes on.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option(
    "--out",
    default=records.RECORD,
    type=click.Path(path_type=Path),
    help="The record, which holds the draw; if there is none, SEED draws.  [default: that of the repository]",
)
@click.option("--again", is_flag=True, help="Judge survivors and time-outs without a reason anew: tests may have come.")
def main(
    seed: str, count: int, only: tuple[str, ...], minutes: float | None, jobs: int, out: Path, *, again: bool
) -> None:
    """Draw mutants, judge each by the unit tests of its layer and by the simulator, list the survivors.

    Exit code: 0 if 85 % of those that count were killed, 1 if not, 3 if fewer than COUNT were judged.
    """
    try:
        int(seed, 16)
    except ValueError:
        raise click.BadParameter("not a hexadecimal number", param_hint="--seed") from None
    end = None if minutes is None else time.monotonic() + 60 * minutes
    rows = records.load(out) or _draw(seed, count, only)
    records.save(out, rows.values())
    waiting = [row for row in rows.values() if _is_due(row, again=again) and _is_there(row)]
    waiting.sort(key=lambda row: row.status == DRAWN)
    with tempfile.TemporaryDirectory(prefix="raftmq-mutants-") as name:
        campaign = Campaign(out, rows, jobs, Path(name)) if waiting else None
        if campaign:
            campaign.measure()
        while campaign and waiting and (end is None or time.monotonic() < end):
            if waiting[0].status == DRAWN and _counted(rows) >= count:
                break
            campaign.run(waiting[:jobs])
            del waiting[:jobs]
    for line in records.summary(list(rows.values()), SOURCE_ROOT):
        click.echo(line)
    if _counted(rows) < count and not only:
        raise SystemExit(3)
    killed = sum(row.status == KILLED for row in rows.values())
    raise SystemExit(0 if killed >= 0.85 * _counted(rows) else 1)


def _counted(rows: dict[records.Key, Row]) -> int:
    return sum(row.status in COUNTED for row in rows.values())


if __name__ == "__main__":
    main()
