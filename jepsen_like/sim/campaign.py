"""Runs many seeds on one or more processes, sums up the results, and checks whether the runs were hard enough to prove
much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from zlib import crc32

from jepsen_like.sim.checks.monitor import SOMETIMES
from jepsen_like.sim.faults.fault_plan import Fault, plan
from jepsen_like.sim.options import draw
from jepsen_like.sim.result import ACKED_MIN, KINDS_MIN, SimResult
from jepsen_like.sim.world import run_seed

CHUNK = 5
LEADER_CHANGE_SHARE_MIN = 0.6
SOMETIMES_FROM = 1000
"""Number of seeds from which on a rare state that was never reached fails the run."""


class Summary:
    """The results of a range of seeds, and their totals."""

    def __init__(self, first_seed: int) -> None:
        self.first_seed = first_seed
        self.verdicts: dict[int, SimResult] = {}
        self.sometimes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def add(self, verdict: SimResult) -> None:
        """Adds the result of one more seed."""
        self.verdicts[verdict.seed] = verdict
        self.sometimes.update(verdict.sometimes)
        self.faults.update(verdict.faults)

    @property
    def failing(self) -> list[SimResult]:
        """Returns the results with violations, ordered by seed."""
        return [v for _, v in sorted(self.verdicts.items()) if v.violations]

    def share(self, holds: Callable[[SimResult], bool]) -> float:
        """Returns the share (0 to 1) of the seeds without violation whose result satisfies `holds`."""
        whole = [verdict for verdict in self.verdicts.values() if not verdict.violations]
        return sum(map(holds, whole)) / max(1, len(whole))

    def shortfalls(self) -> list[str]:
        """Returns the reasons why the runs prove less than they should: too weak seeds, too few leader changes, states
        never reached; [] if there are none."""
        weak = sorted(v.seed for v in self.verdicts.values() if not v.violations and not v.counts)
        found = []
        if weak:
            few = f"{ACKED_MIN} acknowledged operations, {KINDS_MIN} kinds of faults, one between an append and its ack"
            found.append(f"{len(weak)} seeds below {few}: {', '.join(map(str, weak[:10]))}")
        changed = self.share(lambda v: v.leader_changes > 0)
        if changed < LEADER_CHANGE_SHARE_MIN:
            found.append(f"a leader change in {changed:.0%} of the seeds, {LEADER_CHANGE_SHARE_MIN:.0%} are due")
        if len(self.verdicts) >= SOMETIMES_FROM:
            found += [f"never reached: {name}" for name in SOMETIMES if not self.sometimes[name]]
        return found

    def trace(self) -> str:
        """Returns one hash over the traces of all runs, in the order of seeds."""
        digest = 0
        for _, verdict in sorted(self.verdicts.items()):
            digest = crc32(verdict.hash.encode(), digest)
        return f"{digest:08x}"

    def as_dict(self) -> dict[str, object]:
        """Returns the totals as key -> value, as the option --json prints them."""
        count = max(1, len(self.verdicts))
        cpu_s = sum(v.cpu_s for v in self.verdicts.values())
        return {
            "engine": "full",
            "first_seed": self.first_seed,
            "seeds": len(self.verdicts),
            "violations": sum(len(v.violations) for v in self.verdicts.values()),
            "failing_seeds": [v.seed for v in self.failing],
            "acked": sum(v.acked for v in self.verdicts.values()),
            "unknown": sum(v.unknown for v in self.verdicts.values()),
            "faults": dict(sorted(self.faults.items())),
            "leader_changes": sum(v.leader_changes for v in self.verdicts.values()),
            "events_per_seed": round(sum(v.events for v in self.verdicts.values()) / count),
            "seeds_per_minute_and_core": round(60 * count / max(cpu_s, 1e-9), 1),
            "share_counting": round(self.share(lambda v: v.counts), 3),
            "share_leader_change": round(self.share(lambda v: v.leader_changes > 0), 3),
            "machine_minutes": round(cpu_s / 60, 2),
            "sometimes": dict(self.sometimes),
            "shortfalls": self.shortfalls(),
            "trace": self.trace(),
        }

    def line(self) -> str:
        """Returns the totals as one line of text."""
        row = self.as_dict()
        last = self.first_seed + len(self.verdicts) - 1
        return (
            f"full: seeds {self.first_seed}-{last} ({len(self.verdicts)}), {row['violations']} violations, "
            f"{row['acked']} operations acknowledged ({row['unknown']} unknown), {self.faults.total()} faults of "
            f"{len(self.faults)} kinds, {row['leader_changes']} leader changes, {row['events_per_seed']} events/seed, "
            f"{row['seeds_per_minute_and_core']} seeds per minute and core, "
            f"counting {self.share(lambda v: v.counts):.0%}, "
            f"with a leader change {self.share(lambda v: v.leader_changes > 0):.0%}, trace {row['trace']}"
        )


def run_range(
    first_seed: int, seeds: int, *, jobs: int = 1, heard: Callable[[SimResult], None] = lambda verdict: None
) -> Summary:
    """Runs `seeds` seeds from `first_seed` on `jobs` processes, and calls `heard` with each result as it comes."""
    summary = Summary(first_seed)
    for verdict in _verdicts(first_seed, seeds, jobs):
        summary.add(verdict)
        heard(verdict)
    return summary


def _verdicts(first_seed: int, seeds: int, jobs: int) -> Iterator[SimResult]:
    if jobs == 1:
        for seed in range(first_seed, first_seed + seeds):
            yield run_seed(seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        starts = range(first_seed, first_seed + seeds, CHUNK)
        futures: list[Future[list[SimResult]]] = [
            pool.submit(_chunk, start, min(CHUNK, first_seed + seeds - start)) for start in starts
        ]
        for future in as_completed(futures):
            yield from future.result()


def _chunk(first_seed: int, seeds: int) -> list[SimResult]:
    return [run_seed(seed) for seed in range(first_seed, first_seed + seeds)]


def shrink(seed: int, runs_max: int, heard: Callable[[str], None] = lambda line: None) -> tuple[Fault, ...]:
    """Returns the fewest faults found with which the same checker still reports a violation first (Zeller's ddmin over
    the plan).

    After a first run with the whole plan, runs the seed at most `runs_max` times. `heard` gets a line of text whenever
    fewer faults suffice. Raises ValueError if the seed has no violation.
    """
    faults: tuple[Fault, ...] = plan(draw(seed))
    whole = run_seed(seed)
    if not whole.violations:
        raise ValueError(f"seed {seed} has no violation to shrink")
    checker = whole.violations[0].checker
    runs = 0

    def fails(some: Sequence[Fault]) -> bool:
        nonlocal runs
        runs += 1
        found = run_seed(seed, faults=some).violations
        return bool(found) and found[0].checker == checker

    parts = 2
    while len(faults) > 1 and runs < runs_max:
        size = -(-len(faults) // parts)
        for at in range(0, len(faults), size):
            rest = faults[:at] + faults[at + size :]
            if runs < runs_max and fails(rest):
                faults, parts = rest, max(2, parts - 1)
                heard(f"{len(faults)} faults still do it ({runs} runs)")
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), 2 * parts)
    return faults
