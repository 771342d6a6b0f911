"""An open loop against every system: requests that arrive by a schedule, at shares of the rate that this system reached
with many requests in flight.

A closed loop, as in the other rows, sends less as soon as a system is slow; an open loop shows what users experience.
Latencies count from the scheduled moment (`raftmq.commands.open_arrivals`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from bench.peers import loads
from bench.peers.loads import PATIENCE_S, Window
from bench.peers.rounds import Field, attempt, order, spread
from bench.peers.system import Load, Node, System
from raftmq.commands.bench_open import precise_loop
from raftmq.commands.open_arrivals import Arrivals, percentile

SHARES = (0.1, 0.3, 0.5, 0.8)
"""The rates of the runs, as shares of the system's capacity."""
CAPACITY = (1024, 1, 512)
"""The load whose rate is the capacity: body bytes, messages per request, requests in flight."""
PLACES = 4096
"""The most requests without an answer; further arrivals count as late."""


class OpenTurn(NamedTuple):
    """The outcomes of the requests of one run."""

    share: float
    rate: float
    arrivals: int
    late: int
    """Arrivals that the generator sent more than a millisecond late."""
    refused: int
    unknown: int
    """Requests that were not answered in time."""
    latencies_ms: list[float]
    """The latencies of acknowledged requests, ascending."""


def play(
    fields: Sequence[Field],
    rounds: int,
    seconds: float,
    tell: Callable[[str], None],
    patience_s: float = PATIENCE_S,
) -> dict[str, list[OpenTurn]]:
    """Plays all rounds of all systems that have a capacity; returns name of the system -> its runs. `patience_s`:
    seconds for which a run waits for answers at its end."""
    by_name = {field.name: field for field in fields}
    found: dict[str, list[OpenTurn]] = {}
    for number in range(rounds):
        for name in order(list(by_name), number):
            field = by_name[name]
            if field.failed or not capacity_of(field):
                continue
            tell(f"open loop, round {number + 1} of {rounds}: {name}")
            attempt(field, partial(_turn, field, seconds, number, found.setdefault(name, []), patience_s), tell)
    return found


def capacity_of(field: Field) -> float:
    """Returns the median rate of the load CAPACITY in messages per second; 0.0 if it was not measured."""
    rates = [one.messages_per_second for load, each in field.samples.items() if load[:3] == CAPACITY for one in each]
    return spread(rates).median if rates else 0.0


def _turn(field: Field, seconds: float, number: int, into: list[OpenTurn], patience_s: float) -> None:
    capacity = capacity_of(field)
    leader = field.resume()
    try:
        play_share = partial(run, field.system, leader)
        into += [play_share(share, share * capacity, seconds, number, patience_s) for share in SHARES]
    finally:
        field.pause()


def run(
    system: System,
    leader: Node,
    share: float,
    rate: float,
    seconds: float,
    seed: int,
    patience_s: float = PATIENCE_S,
) -> OpenTurn:
    """Plays one run on one connection: `rate` requests a second for `seconds`. Raises OSError."""
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        arrivals = runner.run(_run(system, leader, Arrivals(rate, seconds, seed), seconds, patience_s))
    took = sorted(latency for _, latency in arrivals.stored)
    scheduled, refused = len(arrivals.scheduled), len(arrivals.refused)
    return OpenTurn(share, rate, scheduled, len(arrivals.late), refused, scheduled - len(took) - refused, took)


async def _run(system: System, leader: Node, arrivals: Arrivals, seconds: float, patience_s: float) -> Arrivals:
    def scheduled(load: Load) -> Window:
        generator = cast(Window, system.generator(load))
        generator.arrivals = arrivals
        return generator

    async with loads.running(scheduled, leader, Load(*CAPACITY[:2], PLACES, seconds)) as generator:
        with contextlib.suppress(TimeoutError):  # a request without an answer has an unknown outcome
            await asyncio.wait_for(generator.done, seconds + patience_s)
    return arrivals


def rows(found: Mapping[str, Sequence[OpenTurn]]) -> list[dict[str, Any]]:
    """Returns a row for each system and share. Its latencies are those of all rounds together."""
    made = []
    for name, turns in found.items():
        for share in SHARES:
            same = [turn for turn in turns if turn.share == share]
            if not same:
                continue
            took = sorted(latency for turn in same for latency in turn.latencies_ms)
            count = sum(turn.arrivals for turn in same)
            made.append(
                {
                    "system": name,
                    "share": share,
                    "rate": round(same[0].rate),
                    "arrivals": count,
                    "p50_ms": round(percentile(took, 0.5), 3),
                    "p99_ms": round(percentile(took, 0.99), 3),
                    "p999_ms": round(percentile(took, 0.999), 3),
                    "refused": sum(turn.refused for turn in same),
                    "unknown": sum(turn.unknown for turn in same),
                    "late_share": round(sum(turn.late for turn in same) / count, 4) if count else 0.0,
                }
            )
    return sorted(made, key=lambda row: row["share"])
