"""The options of one run, drawn from its seed: sizes, timeouts, faults. No two runs are alike (swarm testing)."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

TICK_US = 10_000
"""The tick of a node whose clock runs exactly, in microseconds of virtual time."""

FAULTS = (
    "crash",
    "power_failure",
    "pause",
    "isolate",
    "halves",
    "one_way",
    "loss",
    "duplicate",
    "slow_link",
    "slow_disk",
    "clock",
    "transfer",
    "campaign",
    "closed",
)
TRIGGERS = (
    "crash_after_vote",
    "newborn_crash",
    "newborn_isolate",
    "cut_uncommitted",
    "delay_acks",
    "crash_mid_append",
    "late_votes",
    "crash_after_commit",
)
PLAYS = ("figure_8", "stale_vote", "stale_ack", "double_vote", "late_handover", "stale_read")
"""Names of plays: faults in one exact order (staged_faults.py)."""


_ACKED_GOAL = 200
_THRIFTY_FROM = 998_000_000
"""The seed from which on about half of the seeds are thrifty. Earlier seeds are never thrifty, so that their runs stay
as they were.
"""


class Knobs(NamedTuple):
    """The options of one run."""

    nodes: int
    raft: dict[str, Any]
    """RaftConfig fields besides the node id."""
    fifo: bool
    """True if links keep order, as TCP does; False: any message may overtake any other."""
    link_us: int
    jitter_us: int
    disk_us: int
    ack_last_only: bool
    """True if one fdatasync covers several writes and only the last is reported."""
    clients: int
    burst: int
    reads: float
    payload: int
    timeout_us: int
    think_us: int
    """The most microseconds between an answer and the client's next batch."""
    fault_gap_us: int
    faults: tuple[str, ...]
    triggers: tuple[tuple[str, float], ...]
    """Triggers with their probability at each occasion; none in a third of the runs."""
    play: str | None
    """The play that is staged a few times; None in most runs."""
    acked_goal: int
    changes: bool = False
    """True if members join, become voters and leave."""
    trims: bool = False
    """True if logs are trimmed; members that fall behind then install snapshots."""
    churn_gap_us: int = TICK_US
    voters_min: int = 3
    """The number of voters below which no voter is removed."""
    thrifty: bool = False
    """True if leaders hold appends back (`raftlog.core.held_appends`)."""


def draw(seed: int) -> Knobs:
    """Draws the options of `seed`."""
    rng = random.Random(f"{seed}/knobs")
    fifo = rng.random() < 0.5
    unrest = rng.random() < 0.4  # short election timeouts, without pre-vote and check-quorum
    election = rng.choice([5, 8, 10])
    raft = {
        "group_id": 1,
        "election_ticks": election,
        "heartbeat_ticks": rng.choice([1, 2, 3]),
        "append_bytes_max": rng.choice([1, 200, 600, 1 << 20, 1 << 20]),
        # Without order on links, each refusal repeats the whole window, and the copies cause more copies. TCP keeps
        # order; a wide window without it would only show this (docs/internals/robustness.md).
        "inflight_messages_max": rng.choice([1, 2, 8, 256] if fifo else [1, 2, 4]),
        "inflight_bytes_max": rng.choice([300, 1 << 20]),
        "cache_bytes_max": rng.choice([1, 4000, 1 << 20]),
        "apply_bytes_max": rng.choice([1, 400, 1 << 20]),
        "applying_bytes_max": rng.choice([100, 1 << 20]),
        "segment_size": rng.choice([600, 1 << 20]),
        "pre_vote": not unrest or rng.random() < 0.3,
        "check_quorum": not unrest or rng.random() < 0.3,
    }
    triggers: tuple[tuple[str, float], ...] = ()
    if rng.random() < 0.67:
        triggers = tuple((name, rng.choice([0.05, 0.2, 0.5])) for name in rng.sample(TRIGGERS, rng.randint(1, 3)))
    play = rng.choice(PLAYS) if rng.random() < 0.45 else None
    if play == "figure_8" and rng.random() < 0.8:
        raft["append_bytes_max"] = 1  # one entry per message, so the old entry arrives without the new leader's own
    elif play == "stale_vote" and rng.random() < 0.8:
        raft["pre_vote"] = False
    clients, burst = rng.randint(2, 4), rng.choice([1, 3, 5, 8])
    thrifty = seed >= _THRIFTY_FROM and (thrift := random.Random(f"{seed}/thrifty")).random() < 0.5
    if thrifty and thrift.random() < 0.7:
        burst = 1  # leaders hold nothing back while much is in flight
    fault_gap_us = rng.choice([3, 8, 15]) * TICK_US
    faults = tuple(sorted(rng.sample(FAULTS, rng.randint(3, 7))))
    return Knobs(
        nodes=rng.choice([3, 3, 3, 3, 3, 5]),
        raft=raft,
        fifo=fifo,
        link_us=rng.choice([200, 500, 1500]),
        jitter_us=rng.choice([100, 1000, 6000]),
        disk_us=rng.choice([200, 1000, 5000]),
        ack_last_only=rng.random() < 0.3,
        clients=clients,
        burst=burst,
        reads=rng.choice([0.1, 0.3]),
        payload=rng.choice([4, 40, 250]),
        timeout_us=rng.choice([4, 8, 15]) * TICK_US,
        # The operations then take about as long as the faults.
        think_us=fault_gap_us * clients * burst * 12 // _ACKED_GOAL,
        fault_gap_us=fault_gap_us,
        faults=faults,
        triggers=triggers,
        play=play,
        acked_goal=_ACKED_GOAL,
        # A staged play needs three or five members that do not change.
        changes=play is None and rng.random() < 0.6,
        trims=rng.random() < 0.4,
        churn_gap_us=rng.choice([4, 10, 20]) * TICK_US,
        # With fewer voters, the one with the wrong clock would determine log time.
        voters_min=3 if "clock" in faults else rng.choice([1, 2, 3]),
        thrifty=thrifty,
    )
