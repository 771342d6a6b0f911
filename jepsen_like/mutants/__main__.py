"""`make mutants`: draws mutants, judges them, lists the survivors; goes on where the last run ended."""

from __future__ import annotations

import queue
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import click

from jepsen_like.mutants import records
from jepsen_like.mutants.drawing import Mutant, drawn
from jepsen_like.mutants.judging import KILLED, NOT_COUNTED, SURVIVED, Judgement, judge
from jepsen_like.mutants.workshop import Workshop
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT

COUNTED = (KILLED, SURVIVED)
SLICE = 8
"""Mutants that are handed out at a time: how many more are needed is known only when these are judged."""


class Campaign:
    """One run: workshops, what was judged before, and where to note the rest."""

    def __init__(self, out: Path, jobs: int, folder: Path) -> None:
        self._out = out
        self._jobs = jobs
        self._workshops: queue.Queue[Workshop] = queue.Queue()
        for job in range(jobs):
            root = folder / str(job)
            root.mkdir()
            self._workshops.put(Workshop(root))
        self.known = records.load(out)

    def run(self, mutants: list[Mutant]) -> None:
        """Judges those that were not judged before."""
        with ThreadPoolExecutor(self._jobs) as pool:
            for judgement in pool.map(self._judge, [m for m in mutants if m.name not in self.known]):
                records.append(self._out, judgement)
                self.known[judgement.name] = judgement
                click.echo(f"{judgement.status:<12} {judgement.seconds:>6.1f} s  {judgement.name}  {judgement.by}")

    def _judge(self, mutant: Mutant) -> Judgement:
        workshop = self._workshops.get()
        try:
            return judge(mutant, workshop)
        finally:
            self._workshops.put(workshop)


@click.command()
@click.option("--seed", default="6a2b3fa", show_default=True, help="Hexadecimal; the first digits of a commit.")
@click.option("--count", default=200, show_default=True, type=click.IntRange(min=1), help="Mutants that count.")
@click.option("--file", "only", multiple=True, help="Draw from these files alone (repeatable).")
@click.option("--minutes", type=click.FloatRange(min=0), help="Stop after about this long; the next run goes on.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option("--out", default=Path("mutants.jsonl"), show_default=True, type=click.Path(path_type=Path))
@click.option("--again", is_flag=True, help="Judge survivors and time-outs anew: tests may have come since.")
def main(
    seed: str, count: int, only: tuple[str, ...], minutes: float | None, jobs: int, out: Path, *, again: bool
) -> None:
    """Draw mutants, judge each by the unit tests of its layer and by the simulator, list the survivors.

    Exit code: 0 if 85 % of those that count were killed, 1 if not, 3 if fewer than COUNT were judged.
    """
    try:
        number = int(seed, 16)
    except ValueError:
        raise click.BadParameter("not a hexadecimal number", param_hint="--seed") from None
    end = None if minutes is None else time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="raftmq-mutants-") as name:
        campaign = Campaign(out, jobs, Path(name))
        if again:
            campaign.known = {k: v for k, v in campaign.known.items() if v.status in (KILLED, NOT_COUNTED)}
        order = drawn(SOURCE_ROOT, number, only)
        chosen: list[Judgement] = []
        while sum(found.status in COUNTED for found in chosen) < count and (end is None or time.monotonic() < end):
            mutants = list(islice(order, SLICE))
            if not mutants:
                break
            campaign.run(mutants)
            chosen += [campaign.known[mutant.name] for mutant in mutants]
    for line in records.summary(chosen):
        click.echo(line)
    judged = [found for found in chosen if found.status in COUNTED]
    if len(judged) < count and not only:
        raise SystemExit(3)
    killed = sum(found.status == KILLED for found in judged)
    raise SystemExit(0 if killed >= 0.85 * len(judged) else 1)


if __name__ == "__main__":
    main()
