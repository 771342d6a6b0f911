"""Runs many seeds: spreads them over processes, sums up their results, and checks the conditions under which seeds
prove something."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from hashlib import blake2b
from multiprocessing import get_context

from jepsen_like.core_sim.run import CoreResult, run_seed
from jepsen_like.core_sim.run_options import PLAYS
from jepsen_like.core_sim.world import MID_APPEND

_CHUNK = 50
ACKED_MIN = 200
FAULT_KINDS_MIN = 3
LEADER_CHANGE_SHARE_MIN = 0.6

RARE_STATES = (
    "suffix truncated",
    "vote granted, then crash",
    "write lost",
    "leader deposed with proposals",
    "leader cut off with an uncommitted suffix",
    "read before the term's first commit",
    "append refused",
    MID_APPEND,
    "part of a batch asked for again",
    "proposal dropped",
    *(f"play {name}" for name in PLAYS),
    "members: add",
    "members: promote",
    "members: remove",
    "change undone",
    "change refused",
    "leader removes itself",
    "member comes back",
    "log trimmed",
    "snapshot offered",
    "snapshot installed",
    "log backfilled",
)
"""Rare states that a long search must reach: a count of zero is a blind spot of the generator."""
RARE_STATES_FROM = 1_000
"""The number of seeds from which on a count of zero fails the run."""


@dataclass(slots=True)
class CoreSummary:
    """The totals of a range of seeds."""

    first_seed: int
    seeds: int = 0
    events: int = 0
    acked: int = 0
    enough_acked: int = 0
    enough_faults: int = 0
    mid_append: int = 0
    leader_changed: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    violations: list[CoreResult] = field(default_factory=list)
    traces: dict[int, str] = field(default_factory=dict)

    def add(self, verdict: CoreResult) -> None:
        """Adds the result of one seed."""
        self.seeds += 1
        self.events += verdict.events
        self.acked += verdict.acked
        self.seen.update(verdict.seen)
        self.cpu_s += verdict.cpu_s
        self.traces[verdict.seed] = verdict.trace
        if not verdict.valid:
            self.violations.append(verdict)
            return
        self.enough_acked += verdict.acked >= ACKED_MIN
        self.enough_faults += verdict.fault_kinds >= FAULT_KINDS_MIN
        self.mid_append += verdict.seen[MID_APPEND] > 0
        self.leader_changed += verdict.leader_changes > 0

    def shortfalls(self) -> list[str]:
        """Returns the conditions that the seeds without a violation do not meet; [] if they meet all. A run that misses
        one proves less than it seems to.
        """
        valid = self.seeds - len(self.violations)
        found = [
            f"{name}: {count} of {valid} seeds"
            for name, count in (
                (f"fewer than {ACKED_MIN} acknowledged operations", valid - self.enough_acked),
                (f"fewer than {FAULT_KINDS_MIN} kinds of faults", valid - self.enough_faults),
                ("no fault between an append and its ack", valid - self.mid_append),
            )
            if count
        ]
        if self.leader_changed < LEADER_CHANGE_SHARE_MIN * valid:
            found.append(f"a leader change in only {self.leader_changed} of {valid} seeds")
        if self.seeds >= RARE_STATES_FROM:
            found += [f"never reached: {name}" for name in RARE_STATES if not self.seen[name]]
        return found

    def trace(self) -> str:
        """Returns one hash over all seeds' traces, in seed order."""
        digest = blake2b(digest_size=8)
        for seed in sorted(self.traces):
            digest.update(self.traces[seed].encode())
        return digest.hexdigest()

    def line(self) -> str:
        """Returns the summary in one line."""
        valid = max(self.seeds - len(self.violations), 1)
        return (
            f"core: seeds {self.first_seed}-{self.first_seed + self.seeds - 1} ({self.seeds}), "
            f"{len(self.violations)} violations, {60 * self.seeds / max(self.seconds, 1e-9):.0f} seeds/min "
            f"({60 * self.seeds / max(self.cpu_s, 1e-9):.0f} per CPU minute), "
            f"{self.events / max(self.seeds, 1):.0f} events/seed, {self.acked / max(self.seeds, 1):.0f} acked/seed "
            f"(>= {ACKED_MIN} in {self.enough_acked / valid:.0%}), >= {FAULT_KINDS_MIN} fault kinds in "
            f"{self.enough_faults / valid:.0%}, fault between append and ack in {self.mid_append / valid:.0%}, leader "
            f"change in {self.leader_changed / valid:.0%}, trace {self.trace()}"
        )


def run_range(first_seed: int, seeds: int, *, jobs: int = 1, black_box: bool = False) -> CoreSummary:
    """Runs `seeds` seeds from `first_seed` on, in `jobs` processes."""
    summary = CoreSummary(first_seed)
    started = time.monotonic()
    for verdict in _verdicts(first_seed, seeds, jobs, black_box):
        summary.add(verdict)
    summary.violations.sort(key=lambda verdict: verdict.seed)
    summary.seconds = time.monotonic() - started
    return summary


def _verdicts(first_seed: int, seeds: int, jobs: int, black_box: bool) -> Iterator[CoreResult]:
    if jobs == 1:
        yield from _chunk(first_seed, seeds, black_box)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures: list[Future[list[CoreResult]]] = [
            pool.submit(_chunk, start, min(_CHUNK, first_seed + seeds - start), black_box)
            for start in range(first_seed, first_seed + seeds, _CHUNK)
        ]
        for future in as_completed(futures):
            yield from future.result()


def _chunk(first_seed: int, seeds: int, black_box: bool) -> list[CoreResult]:
    return [run_seed(seed, black_box=black_box) for seed in range(first_seed, first_seed + seeds)]
