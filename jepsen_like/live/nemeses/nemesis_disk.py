"""Nemeses of disks and clocks, through the node's own failpoints and the preloaded shim."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import cast

from jepsen_like.live.nemeses.nemesis_interface import Effect, HasDisks, HasFailpoints, Nemesis, Stage
from jepsen_like.live.subjects.subject import Capability

_FAILPOINTS = frozenset({Capability.FAILPOINTS})
_POLL_S = 0.1
_RESUME_S = 15.0
"""Seconds within which a log that waited for space must continue after there is some."""


def _failpoint(
    stage: Stage, node: int, point: str, action: str, hold_s: float, then: Callable[[], object] = lambda: None
) -> Effect:
    """Sets an action at a failpoint of the node for `hold_s` seconds, and calls `then` once it is set. The fault counts
    as happened if the failpoint was hit, or if the node stopped itself because of it.
    """
    subject = cast(HasFailpoints, stage.subject)  # a plan deals this fault only to a subject with failpoints
    before = subject.failpoint_hits(node)[point]
    subject.set_failpoint(node, point, action)
    then()
    hits = _watch(stage, node, point, hold_s) - before
    stopped = not stage.subject.is_running(node)
    if not stopped:
        try:
            subject.set_failpoint(node, point, "off")
        except OSError:
            stopped = True  # the node ends itself because of the fault
    told = f"{point} {action} on node {node} for {hold_s:.1f} s: hit {max(0, hits)} times"
    return Effect(hits > 0 or stopped, told + ", the node stopped" * stopped, {"hits": hits, "stopped": float(stopped)})


def _watch(stage: Stage, node: int, point: str, hold_s: float) -> int:
    """Returns the highest number of hits seen until the time is over or the node has ended, including an operation that
    is held now."""
    subject = cast(HasFailpoints, stage.subject)
    hits = 0
    deadline = stage.clock() + hold_s
    while stage.subject.is_running(node):
        with contextlib.suppress(OSError):  # the node is busy, or has ended and `is_running` returns False
            hits = max(hits, subject.failpoint_hits(node)[point] + subject.failpoint_waiting(node)[point])
        if stage.clock() >= deadline:
            break
        stage.sleep(min(_POLL_S, hold_s))
    return hits


def slow_disk(stage: Stage, hold_s: float) -> Effect:
    """Makes every sync of the log take many times as long."""
    factor = stage.rng.choice((20, 50, 100))
    return _failpoint(stage, stage.some(), "append.fdatasync", f"slow:{factor}x", hold_s)


def held_disk(stage: Stage, hold_s: float) -> Effect:
    """Keeps a sync of the log from returning."""
    return _failpoint(stage, stage.some(), "append.fdatasync", "hold", hold_s)


def full_disk(stage: Stage, hold_s: float) -> Effect:
    """Leaves no space for the log: the node must wait, and continue by itself once there is space. The fault counts as
    happened only if the node continues within _RESUME_S.
    """
    node = stage.some()
    disks = cast(HasDisks, stage.subject)  # a subject with failpoints also implements HasDisks
    before, _ = disks.disk(node)
    effect = _failpoint(stage, node, "append.write", "error:ENOSPC", hold_s)
    if not stage.subject.is_running(node):
        ended = f"node {node} ended when its disk was full: it should have waited"
        return effect._replace(happened=False, told=f"{effect.told}: it should have waited", broken=(ended,))
    has_space = not effect.numbers["stopped"]  # the node took the order to end the fault
    deadline, waits, said_so, parkings = stage.clock() + _RESUME_S, True, False, 0
    while waits and stage.clock() < deadline:
        stage.sleep(_POLL_S)
        said_so = False
        with contextlib.suppress(OSError):
            parkings, waits = disks.disk(node)
            said_so = waits
    parkings = max(0, parkings - before)
    told = f"{effect.told}; its log waited {parkings} times and {'STILL WAITS' if waits else 'goes on'}"
    numbers = {**effect.numbers, "parkings": float(parkings)}
    late = f"the log of node {node} still waits for space, {_RESUME_S:.0f} s after there was some"
    return Effect(effect.happened and not waits, told, numbers, (late,) if said_so and has_space else ())


def failing_disk(stage: Stage, hold_s: float) -> Effect:
    """Makes a sync of the log, or of term and vote, fail."""
    if stage.rng.random() < 0.7:
        return _failpoint(stage, stage.some(), "append.fdatasync", "error:EIO", hold_s)
    node = stage.followers()[0]  # when the leader is killed, a follower votes and must write its vote to disk
    leader = stage.leader()
    effect = _failpoint(stage, node, "hardstate.fdatasync", "error:EIO", hold_s, lambda: stage.strike([leader]))
    return effect._replace(told=f"{effect.told}; the leader was killed to make it vote")


def _power(stage: Stage, nodes: list[int], hold_s: float) -> Effect:
    assert stage.power is not None
    if hold_s and stage.rng.random() < 0.6:
        _delay_syncs(stage, nodes)
    in_flight = stage.load.counts.in_flight
    numbers = stage.power.cut(nodes, stage.rng)
    stage.power_failures += int(numbers["nodes"])
    stage.sleep(hold_s)
    stage.start_all()
    told = (
        f"power lost on node {', '.join(map(str, nodes))} with {in_flight} sends in flight: "
        f"{numbers['writes']:.0f} unsynced writes ({numbers['bytes']:.0f} bytes) undone, {numbers['kept']:.0f} kept"
    )
    return Effect(numbers["nodes"] == len(nodes), told, numbers)


def _delay_syncs(stage: Stage, nodes: list[int]) -> None:
    """Delays the syncs of these nodes, so that the next fault is likely to come between an append and its sync."""
    subject = cast(HasFailpoints, stage.subject)  # A plan deals this fault only to a subject with failpoints.
    for node in nodes:
        if stage.subject.is_running(node):
            subject.set_failpoint(node, "append.fdatasync", "delay:300ms")
    stage.sleep(stage.rng.uniform(0.05, 0.4))


def power_loss_one(stage: Stage, hold_s: float) -> Effect:
    """Cuts the power of the leader or of any node."""
    return _power(stage, [stage.some()], min(hold_s, 1.0))


def power_loss_majority(stage: Stage, hold_s: float) -> Effect:
    """Cuts the power of a majority, including the leader."""
    return _power(stage, stage.majority(), min(hold_s, 0.5))


def power_loss_all(stage: Stage, hold_s: float) -> Effect:
    """Cuts the power of every node, and soon again, two or three times, so that recovery itself is interrupted."""
    effect = _power(stage, stage.subject.node_ids, min(hold_s, 0.2))
    for _ in range(stage.rng.randrange(2, 4)):
        stage.sleep(stage.rng.uniform(0.3, 1.5))
        again = _power(stage, [node for node in stage.subject.node_ids if stage.subject.is_running(node)], 0.0)
        effect = Effect(effect.happened, f"{effect.told}; again after a moment: {again.told}", effect.numbers)
    return effect


def clock_skew(stage: Stage, hold_s: float) -> Effect:
    """Makes a node's wall clock jump, forward or back, and jump again."""
    assert stage.clocks is not None
    node = stage.some()
    before = stage.clocks.skewed_readings(node)
    offset_ms = stage.rng.choice((-1, 1)) * stage.rng.choice((250, 5_000, 45_000, 3_600_000))
    stage.clocks.skew(node, offset_ms)
    stage.sleep(hold_s / 2)
    stage.clocks.skew(node, offset_ms // 2)
    stage.sleep(hold_s / 2)
    readings = stage.clocks.skewed_readings(node) - before
    stage.clocks.skew(node, 0)
    told = f"wall clock of node {node} {offset_ms / 1000:+g} s, then {offset_ms / 2000:+g} s: read {readings} times"
    return Effect(readings > 0, told, {"offset_ms": offset_ms, "readings": readings})


NEMESES = (
    Nemesis("slow-disk", "syncs of the log take 20 to 100 times as long", slow_disk, _FAILPOINTS),
    Nemesis("held-disk", "a sync of the log does not return", held_disk, _FAILPOINTS),
    Nemesis("full-disk", "no space left for the log, which waits until there is", full_disk, _FAILPOINTS),
    Nemesis("failing-disk", "syncs fail with EIO", failing_disk, _FAILPOINTS, stops_nodes=True),
    Nemesis(
        "power-loss-one",
        "a node loses power, and with it what it never synced",
        power_loss_one,
        frozenset({Capability.POWER}),
    ),
    Nemesis(
        "power-loss-majority", "a majority loses power at once", power_loss_majority, frozenset({Capability.POWER})
    ),
    Nemesis(
        "power-loss-all",
        "every node loses power, some again while they recover",
        power_loss_all,
        frozenset({Capability.POWER}),
    ),
    Nemesis("clock-skew", "a node's wall clock jumps", clock_skew, frozenset({Capability.CLOCK})),
)
