"""The fault plan of a run, drawn before the run begins: each fault's kind, start time, duration and random seed.

A fault carries its own seed, so that leaving one out (shrinking) changes nothing about the others. A target such as
"the leader" is determined only when the fault begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jepsen_like.sim.options import ADDED_KINDS, GROUP_KINDS, LATER_KINDS, STALL_KINDS, Options, stream

LASTS_S = {
    "kill": (0.1, 1.5),
    "power": (0.2, 1.5),
    "kill-all": (0.2, 1.0),
    "pause": (0.2, 2.5),
    "pause-leader": (0.3, 3.0),
    "halves": (0.4, 2.5),
    "isolate": (0.4, 2.5),
    "one-way": (0.4, 2.5),
    "ring": (0.4, 2.0),
    "slow-link": (0.3, 2.0),
    "slow-disk": (0.3, 2.0),
    "eio": (0.3, 1.0),
    "enospc": (0.3, 1.0),
    "crash-before-ack": (0.1, 1.2),
    "crash-after-ack": (0.1, 1.2),
    "crash-after-vote": (0.05, 1.0),
    "crash-newborn": (0.1, 1.2),
    "torn-write": (0.1, 1.2),
    "isolate-with-suffix": (0.5, 2.5),
    "away": (4.5, 6.5),
    "stop": (0.2, 1.5),
    "acks-lost": (0.3, 3.0),
    "hold-apply": (0.3, 2.0),
    "late-refusal": (0.3, 1.2),
    "crash-after-sync": (0.1, 1.2),
    "late-apply": (0.8, 2.0),
    "stall": (0.1, 5.0),
    "stall-more": (0.1, 5.0),
    "stall-before-election": (0.1, 1.0),
    "stall-beside-cut": (0.1, 5.0),
    "groups-apart": (0.5, 4.0),
    "first-headless": (0.5, 3.0),
}
"""Fault kind -> shortest and longest duration in seconds, after which the nemesis undoes the fault. A kind without a
row is instantaneous."""


class Fault(NamedTuple):
    """One planned fault: number, start time and duration in seconds, kind, and the seed of its random choices."""

    number: int
    at_s: float
    kind: str
    lasts_s: float
    seed: int

    def describe(self) -> str:
        """Returns the fault as one line of text: number, start time, kind and duration."""
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        return f"#{self.number:<3} {self.at_s:7.3f} s  {self.kind}{lasts}"


def rot_times(options: Options) -> list[float]:
    """Draws the times in seconds at which bits flip on one node's disk: one to three of them, or none with probability
    1/2."""
    rng = stream(options.seed, "rot")
    count = rng.choice((0, 0, 0, 1, 2, 3))
    return [rng.uniform(1.0, options.fault_phase_s) for _ in range(count)]


def away_times(options: Options) -> list[float]:
    """Draws the time in seconds at which a follower is taken away for so long that the others may have trimmed the
    entries that it needs. Returns an empty list without retention."""
    rng = stream(options.seed, "away")
    return [rng.uniform(0.6, 1.6)] if options.retained_bytes else []


def plan(options: Options) -> tuple[Fault, ...]:
    """Returns the faults of a seed, ordered by time. Every plan has one crash between an append and its
    acknowledgement, and one fault that is meant to change the leader (`isolate`, `pause-leader` or `kill`)."""
    rng = stream(options.seed, "faults")
    kinds = [kind for kind, _ in options.weights]
    weights = [weight for _, weight in options.weights]
    found: list[tuple[float, str]] = [
        (rng.uniform(0.5, options.fault_phase_s / 2), "crash-before-ack"),
        (rng.uniform(0.5, options.fault_phase_s - 1.0), rng.choice(("isolate", "pause-leader", "kill"))),
    ]
    at = 0.3
    while at < options.fault_phase_s:
        found.append((at, rng.choices(kinds, weights)[0]))
        at += rng.expovariate(1 / options.fault_every_s)
    # Few enough faults may all be of one kind, and a trigger may wait in vain: these two always take effect.
    found += [(rng.uniform(1.0, options.fault_phase_s), kind) for kind in ("slow-link", "reset")]
    found += [(at_s, "rot") for at_s in rot_times(options)]
    found += [(at_s, "away") for at_s in away_times(options)]
    faults = []
    for number, (at_s, kind) in enumerate(sorted(found)):
        lasts = round(rng.uniform(*LASTS_S[kind]), 3) if kind in LASTS_S else 0.0
        faults.append(Fault(number, round(at_s, 3), kind, lasts, rng.randrange(1 << 30)))
    return tuple(sorted([*faults, *_added(options, len(faults))], key=lambda fault: fault.at_s))


def _added(options: Options, number: int) -> Iterator[Fault]:
    """Yields the faults that the options ask for beyond the first plan: added faults, later faults, stalls and, with a
    second group, faults between groups. Each of the four is drawn from a separate random stream, so that the rest of
    the plan is the same with and without them. `number`: the number of the first one."""
    for name, kinds, counts in (
        ("added faults", ADDED_KINDS, options.added),
        ("later faults", LATER_KINDS, options.later),
        ("stalls", STALL_KINDS, options.stalls),
        ("faults between groups", GROUP_KINDS, (2, 1) if options.second else (0, 0)),
    ):
        rng = stream(options.seed, name)
        for kind in [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]:
            at_s = round(rng.uniform(0.5, options.fault_phase_s), 3)
            lasts = round(rng.uniform(*LASTS_S[kind]), 3) if kind in LASTS_S else 0.0
            yield Fault(number, at_s, kind, lasts, rng.randrange(1 << 30))
            number += 1
