"""The stories `failover`, `frozen-leader`, `isolated-leader` and `graceful`: how long a client waits when the leader is
killed, hangs, is cut off from the others, and when it is stopped in an orderly way.

All measure what single clients saw. Four writers send all the time. The result of each blow (fault) is the longest
pause of any writer that began before the struck node returned: the longest time in which the writer waited and none of
its own sends succeeded.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from jepsen_like.checkers.availability import quantile
from jepsen_like.history import Op
from jepsen_like.live.stories.story import Scene, Story, StoryEnds
from jepsen_like.live.subjects.subject import LoadPlan


class Blow(NamedTuple):
    """A fault that was applied to the cluster, with its times in nanoseconds on the clock of the history."""

    at_ns: int
    until_ns: int
    """End of the blow: a pause that begins later does not count; one that began before counts until it ends."""


class Acks:
    """The times at which each writer's sends were acknowledged; the writer is the part of a message id before the
    dash."""

    def __init__(self, ops: Iterable[Op], writers: Iterable[str]) -> None:
        """`writers`: the names of the clients that send all the time. Other clients, such as the probe of repeated
        sends, are left out, because the time between two of their sends would be mistaken for a pause.
        """
        found: dict[str, list[int]] = {name: [] for name in writers}
        for op in ops:
            if op.f == "send" and op.type == "ok":
                times = found.get(str(op.value["id"]).partition("-")[0])
                if times is not None:
                    times.append(op.time_ns)
        self._times = found

    @property
    def writers(self) -> list[str]:
        """The writers that have any acknowledged send."""
        return sorted(name for name, times in self._times.items() if times)

    def worst_us(self, blow: Blow) -> int | None:
        """Returns the longest pause of any writer, in microseconds, that overlaps with the blow.

        A pause counts in full, from the acknowledgement before it to the one after. None if a writer was never
        acknowledged again.
        """
        pauses = [_longest_ns(times, blow) for times in self._times.values()]
        return max(pauses, default=-1) // 1000 if pauses and -1 not in pauses else None


def _longest_ns(times: Sequence[int], blow: Blow) -> int:
    """Returns the longest pause between two of these times that overlaps with the blow, in nanoseconds; -1 if the last
    pause did not end.
    """
    first = max(0, bisect_right(times, blow.at_ns) - 1)
    last = bisect_left(times, blow.until_ns)
    if last >= len(times):
        return -1
    return max((later - earlier for earlier, later in itertools.pairwise(times[first : last + 1])), default=0)


KILLS, STOPS, SILENCES = 100, 50, 30
FAILOVER_MEDIAN_MS, FAILOVER_P99_MS = 800, 2000
SILENT_MEDIAN_MS = 1200
"""Highest median pause in milliseconds that is allowed for a leader whose connections stay open. The other nodes then
first wait for their election timeout.
"""
GRACEFUL_GAP_MS = 200
AWAY_S = (0.3, 1.0)
"""Shortest and longest time in seconds that the old leader stays away: long enough for the other nodes to settle
without it.
"""
SILENT_S = (2.0, 3.0)
"""Shortest and longest time in seconds that a leader hangs, or is cut off."""
SETTLED_S = 0.2
CALM_S = (0.6, 1.3)
"""Shortest and longest time in seconds between a recovery and the next blow. Pauses in this time come from the machine
and not from a blow, and are reported separately.
"""

Strike = Callable[[int], tuple[str, Callable[[], None]]]
"""A function that applies a fault to the leader; returns its description, and a function that brings the node back."""


def play_failover(scene: Scene) -> None:
    """Kills the leader, again and again, and measures when each client is acknowledged again."""

    def kill(leader: int) -> tuple[str, Callable[[], None]]:
        if not scene.stage.strike([leader]):
            raise StoryEnds(f"node {leader} could not be killed")
        return "kill -9", partial(scene.subject.start_node, leader)

    pauses = _strike_leaders(scene, "kill-leader", scene.count(KILLS), kill)
    median, p99 = _tell(scene, "failover", "kill -9 of the leader", pauses)
    scene.gate("median pause after kill -9 of the leader, ms", median, FAILOVER_MEDIAN_MS, at_most=True)
    scene.gate("p99 pause after kill -9 of the leader, ms", p99, FAILOVER_P99_MS, at_most=True)


def play_frozen(scene: Scene) -> None:
    """Pauses the leader's process (SIGSTOP): no connection is closed, but it is silent to nodes and clients."""

    def freeze(leader: int) -> tuple[str, Callable[[], None]]:
        if not scene.subject.pause(leader):
            raise StoryEnds(f"node {leader} could not be stopped")
        return "SIGSTOP", partial(scene.subject.resume, leader)

    pauses = _strike_leaders(scene, "pause-leader", scene.count(SILENCES), freeze, SILENT_S)
    median, _ = _tell(scene, "frozen_leader", "SIGSTOP of the leader", pauses)
    scene.gate("median pause after SIGSTOP of the leader, ms", median, SILENT_MEDIAN_MS, at_most=True)


def play_isolated(scene: Scene) -> None:
    """Cuts the leader off from the others; clients reach all of them, including the old leader."""

    def cut(leader: int) -> tuple[str, Callable[[], None]]:
        fabric = scene.subject.fabric
        pairs = sorted(fabric.between([leader], [node for node in scene.subject.node_ids if node != leader]))
        fabric.cut(pairs)
        return "cut off", partial(fabric.heal, pairs)

    pauses = _strike_leaders(scene, "isolate-leader", scene.count(SILENCES), cut, SILENT_S)
    median, _ = _tell(scene, "isolated_leader", "the leader cut off from the others", pauses)
    scene.gate("median pause after the leader was cut off, ms", median, SILENT_MEDIAN_MS, at_most=True)


def play_graceful(scene: Scene) -> None:
    """Stops the leader with SIGTERM. It transfers leadership before it ends, so that clients hardly notice."""

    def stop(leader: int) -> tuple[str, Callable[[], None]]:
        begun = time.monotonic()
        if not scene.subject.terminate(leader):
            raise StoryEnds(f"node {leader} did not end in order within the time it has")
        told = f"ended in order after {1000 * (time.monotonic() - begun):.0f} ms"
        return told, partial(scene.subject.start_node, leader)

    before = scene.stage.load.counts
    pauses = _strike_leaders(scene, "stop-leader", scene.count(STOPS), stop)
    after = scene.stage.load.counts
    failed, unknown = after.failed - before.failed, after.unknown - before.unknown
    _tell(scene, "graceful", "orderly stop of the leader", pauses)
    scene.measured |= {"graceful_failed": failed, "graceful_unknown": unknown}
    scene.demand(failed == unknown == 0, f"{failed} sends failed and {unknown} are unknown after orderly stops alone")
    scene.gate("longest pause while the leader stops in order, ms", pauses[-1], GRACEFUL_GAP_MS, at_most=True)


def _strike_leaders(
    scene: Scene, name: str, count: int, strike: Strike, away_s: tuple[float, float] = AWAY_S
) -> list[float]:
    """Applies blows to leaders; returns the milliseconds that the slowest client waited, per blow, ascending. Raises
    StoryEnds."""
    blows: list[Blow] = []
    calms: list[Blow] = []
    for _ in range(count):
        with scene.act(name) as told:
            leader = scene.stage.leader()
            at_ns = time.monotonic_ns()
            what, bring_back = strike(leader)
            told.append(f"node {leader} {what}")
            scene.stage.sleep(scene.rng.uniform(*away_s))
            blows.append(Blow(at_ns, time.monotonic_ns()))  # the pause that the node's return causes does not count
            bring_back()
            told.append(f"well again {1000 * scene.wait_well():.0f} ms after its return")
        scene.stage.sleep(SETTLED_S)
        at_ns = time.monotonic_ns()
        scene.stage.sleep(scene.rng.uniform(*CALM_S))
        calms.append(Blow(at_ns, time.monotonic_ns()))
        scene.stage.sleep(SETTLED_S)  # else the next blow's pause would begin in the calm and count there
    acks = Acks(scene.history.ops, scene.stage.load.writers)
    _tell(scene, f"{name}_calm", "as long without a blow", _pauses(acks, calms[:-1] or calms))
    return _pauses(acks, blows)


def _pauses(acks: Acks, blows: list[Blow]) -> list[float]:
    pauses: list[float] = []
    for blow in blows:
        pause = acks.worst_us(blow)
        if pause is None:
            raise StoryEnds(f"a client was never acknowledged again after {len(pauses) + 1} of {len(blows)}")
        pauses.append(pause / 1000)
    return sorted(pauses)


def _tell(scene: Scene, key: str, name: str, pauses: list[float]) -> tuple[float, float]:
    """Records the pauses with their median and p99, and returns (median, p99)."""
    in_us = [round(1000 * pause) for pause in pauses]
    median, p99 = (quantile(in_us, share) / 1000 for share in (0.5, 0.99))
    scene.tell(f"         {name}: median {median:.0f} ms, p99 {p99:.0f} ms, longest {pauses[-1]:.0f} ms, {len(pauses)}")
    scene.measured |= {
        f"{key}_times": len(pauses),
        f"{key}_median_ms": median,
        f"{key}_p99_ms": p99,
        f"{key}_longest_ms": pauses[-1],
        f"{key}_ms": pauses,
    }
    return median, p99


LOAD = LoadPlan(1000, 256)
"""A steady load, far below what the machine can do, so that waiting for the processor is not measured."""
FAILOVER = Story(play_failover, load=LOAD)
FROZEN = Story(play_frozen, load=LOAD)
ISOLATED = Story(play_isolated, load=LOAD)
GRACEFUL = Story(play_graceful, load=LOAD)
