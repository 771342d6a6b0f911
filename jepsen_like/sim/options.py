"""The choices of a seed before the run: the cluster's knobs, the machines, the load, and which faults are likely."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

FAULT_KINDS = (
    "kill",
    "power",
    "pause",
    "halves",
    "isolate",
    "one-way",
    "ring",
    "slow-link",
    "reset",
    "slow-disk",
    "eio",
    "enospc",
    "clock",
    "transfer",
    "crash-before-ack",
    "crash-after-ack",
    "crash-after-vote",
    "crash-newborn",
    "torn-write",
    "isolate-with-suffix",
    "pause-leader",
    "kill-all",
)
"""The faults that are drawn; docs/testing.md says what each does, and what else a plan holds."""
TRIGGERS = frozenset(
    (
        "crash-before-ack",
        "crash-after-ack",
        "crash-after-vote",
        "crash-newborn",
        "torn-write",
        "isolate-with-suffix",
        "crash-after-sync",
    )
)
"""Kinds that wait for a state instead of a time."""
ADDED_KINDS = ("stop", "half-open", "acks-lost")
"""Kinds that `Options.added` counts: beside the others, in some seeds."""
LATER_KINDS = ("hold-apply", "late-refusal", "crash-after-sync", "late-apply")
"""Kinds that `Options.later` counts."""
STALL_KINDS = ("stall", "stall-more", "stall-before-election", "stall-beside-cut")
"""Kinds that `Options.stalls` counts."""

TIER_BYTES_FROM = 2_500_000
"""First seed of which some tiers keep only so many bytes."""
TIER_READS_FROM = 2_600_000
"""First seed of which some tiers are read although the nodes have the messages, and some manifests have small pages."""
TIER_FROM = 2_000_000
"""Seeds from here on have a tier, every other one. What earlier seeds showed is recorded, and stays as it was."""
CONFIG_FROM = 3_000_000
"""Likewise: in seeds from here on, every other one, the leader gives the cluster its configuration."""
STALLS_FROM = 4_000_000
"""A third of the seeds from here on has turns of a loop that take long."""
WRITES_FROM = 3_000_000
"""A quarter of the seeds from here on has writers."""
LONG_WORK_FROM = 3_800_000
"""Hostile clients of seeds from here on also ask for what a node must cut into steps."""
MANY_FROM = 4_700_000
"""Hostile clients of seeds from here on also make groups of very many members, and topics of very many rows."""
APPLY_FROM = 4_200_000
"""First seed in which what has gathered is often applied in several drains."""
TIER_SEALS_FROM = 4_600_000
"""First seed of which some tiers close segments for their age."""
USERS_FROM = 5_000_000
"""Every other seed from here on has users."""
LEVELS_FROM = 5_200_000
"""A quarter of the seeds from here on has nodes of two versions, and is finalized at some time."""
ROOT = ("root", "root-secret")
"""Name and secret of the Super of seeds with users."""
IN_A_QUARTER = ("ordered", "transactions", "delayed", "failures", "resets", "legacies")
"""Clients that a quarter of the seeds has, each drawn by itself."""


def stream(seed: int, name: str) -> random.Random:
    """One of the seed's generators: a new use of chance under its own name does not disturb the others."""
    return random.Random(f"{seed}:{name}")


class Options(NamedTuple):
    """All that `draw` draws. Times in seconds unless named otherwise."""

    seed: int
    nodes: int
    tick_ms: int
    election_ticks: int
    segment_size: int
    idle_mark_ms: int
    append_bytes_max: int
    batch_bytes_max: int
    batch_messages_max: int
    batches_inflight_max: int
    node_inflight_bytes_max: int
    offsets_flush_ms: int
    deadline_ms: int
    leader_wait_ms: int
    latency_s: tuple[float, float]
    split: float
    disk_s: tuple[float, float]
    apply_s: tuple[float, float]
    apply_inline: float
    append_inline: float
    """Share of the appends that may be written on the loop and are (`cluster.replication.append_runner`); 0: none."""
    skew_ms: int
    fault_phase_s: float
    fault_every_s: float
    weights: tuple[tuple[str, int], ...]
    """Fault kind -> weight; kinds of weight 0 are left out."""
    producers: int
    window: int
    foreign: int
    queues: int
    body_max: int
    think_s: float
    acked_min: int
    event_budget: int = 800_000
    """About twice what the longest clean run needs: small batches (3 messages, one in flight), and long turns of all
    nodes after the faults. A livelock needs more."""
    checkpoint_every_ms: int = 2000
    retained_bytes: int = 0
    """Bytes of log that retention leaves; 0: all."""
    retained_ms: int = 0
    """Log time for which retention leaves the log; 0: for ever."""
    fetch_bytes_per_second: int = 32 << 20
    """Bytes per second that a node gives to others that fetch."""
    added: tuple[int, ...] = (0, 0, 0)
    """Number of faults of each of ADDED_KINDS that the plan has beside the others."""
    weak: float = 0.0
    """Share of the single sends of foreign clients that ask for a weaker acknowledgement."""
    flush_async: int = 0
    """1: the node's own level is `quorum`, and the topics ask for more."""
    memory_pool: int = 0
    """1: a leader's word needs no write."""
    catch_up_bytes_per_second: int = 32 << 20
    """Bytes per second, of what a leader reads from its disk, for all nodes together that catch up."""
    hostile: int = 0
    """1: a client means harm (`sim/hostile/hostile_clients.py`), in the faults and after the heal."""
    tides: int = 0
    """Number of clients that commit one offset again and again, oneway and not, on one connection
    (`sim/clients/tides.py`)."""
    remakes: int = 0
    """1: topics are deleted, made again and changed while messages flow (`sim/clients/remakes.py`)."""
    stepped: float = 0.0
    """Share of a lane's drains that are taken apart (`sim/machines/steps.py`)."""
    later: tuple[int, ...] = (0, 0, 0, 0)
    """Number of faults of each of LATER_KINDS that the plan has beside the others."""
    waits: int = 0
    """1: pulls wait on topics that come and go (`sim/clients/waits.py`)."""
    seekers: int = 0
    """1: what is acknowledged is looked for by its key through any node (`sim/clients/seekers.py`)."""
    repeats: int = 0
    """1: a producer says again what is stored (`sim/clients/repeats.py`)."""
    tales: float = 0.0
    """Share of the rounds of `tides` that are a few steps in an exact order, and then silence."""
    ordered: int = 0
    """1: orderly consumers lock queues, and locks are ended from outside (`sim/locks/ordered.py`)."""
    transactions: int = 0
    """1: producers of transactions (`sim/clients/transactors.py`)."""
    delayed: int = 0
    """1: messages are sent to be delivered later (`sim/clients/delayed.py`)."""
    failures: int = 0
    """1: consumers report messages that they cannot handle (`sim/clients/failures.py`)."""
    resets: int = 0
    """1: the offsets of a group that consumes are reset (`sim/clients/resets.py`)."""
    legacies: int = 0
    """1: topics and groups are deleted while messages wait, and made again (`sim/clients/legacies.py`)."""
    carried: int = 0
    """1: messages wait for longer than retention leaves the log (`sim/clients/delayed.py`,
    `sim/checks/pin_check.py`)."""
    unsent_bytes: int = 16 << 20
    """limits.connection_unsent_bytes_max; a node keeps four times as much."""
    socket_bytes: int = 256 << 10
    """Bytes that kernels hold for a sender to a slow reader."""
    apply_bytes: int = 1 << 20
    """`Environment.apply_bytes` of the nodes."""
    tier_bytes: int = 0
    """Bytes of objects that the tier keeps; 0: all."""
    tier: int = 0
    """1: sealed segments go to an object store that fails as the rest does (`sim/machines/tier_store.py`); 2: and what
    retention takes from the nodes stays there."""
    tier_read: int = 0
    """Number of the one of `cluster.broker.reads.read_levels.LEVELS` that all pulls go by."""
    tier_page: int = 0
    """Full segments in a page of the manifest; 0: as many as a real one has."""
    tier_seal_ms: int = 0
    """`tier.seal_after_ms`; in the end, no message is missing in the tier then."""
    config: int = 0
    """1: the configuration of the cluster becomes a part of its log (`cluster.node.cluster_config`)."""
    writes: int = 0
    """1: writers stage and commit as Spark's sink does (`sim/clients/writers.py`)."""
    stalls: tuple[int, ...] = (0, 0, 0, 0)
    """Number of faults of each of STALL_KINDS that the plan has beside the others; with any, there are more after the
    heal (`sim/faults/stall_faults.py`).
    """
    users: int = 0
    """1: requests are judged, and users come, go and change (`sim/users`)."""
    levels: int = 0
    """1: nodes begin with the older version, and are upgraded, taken back and finalized (`sim/upgrades.py`)."""
    plain: int = 0
    """1: half messages, and what waits while its topic goes, name no level: the native kernel may take the sends."""

    def describe(self) -> str:
        """One line."""
        weights = "+".join(f"{kind}:{weight}" for kind, weight in self.weights)
        rows = [f"{name}={_short(getattr(self, name))}" for name in self._fields if name != "weights"]
        return " ".join([*rows, f"weights={weights}"])


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return "..".join(_short(part) for part in value)
    return str(value)


def draw(seed: int) -> Options:
    """The options of a seed."""
    rng = stream(seed, "options")
    kinds = {kind: rng.choice((0, 1, 1, 3)) for kind in FAULT_KINDS}
    if rng.random() < 1 / 3:  # plain chaos is sampled too
        kinds.update(dict.fromkeys(sorted(TRIGGERS), 0))
    for kind in ("kill", "crash-before-ack"):
        kinds[kind] = max(1, kinds[kind])
    low = rng.choice((0.0001, 0.0005, 0.002))
    disk = rng.choice((0.0003, 0.001, 0.004))
    drawn = Options(
        seed=seed,
        nodes=rng.choice((3, 3, 3, 3, 3, 3, 3, 5)),
        tick_ms=rng.choice((15, 25, 50)),
        election_ticks=rng.choice((5, 8, 10)),
        segment_size=rng.choice((24 << 10, 48 << 10, 128 << 10)),
        idle_mark_ms=rng.choice((2, 10, 50)),
        append_bytes_max=rng.choice((256, 2048, 16384, 1 << 20)),
        batch_bytes_max=rng.choice((600, 2048, 8192)),
        batch_messages_max=rng.choice((1, 3, 16, 4096)),
        batches_inflight_max=rng.choice((1, 2, 4)),
        node_inflight_bytes_max=stream(seed, "busy").choice((128 << 20, 128 << 20, 20_000, 3_000)),
        offsets_flush_ms=rng.choice((20, 100)),
        deadline_ms=rng.choice((300, 1000, 3000)),
        leader_wait_ms=rng.choice((200, 1000, 2000)),
        latency_s=(low, low * rng.choice((2, 5))),
        split=rng.choice((0.0, 0.02, 0.1)),
        disk_s=(disk, disk * rng.choice((2, 6))),
        apply_s=(0.0001, rng.choice((0.0005, 0.003, 0.02))),
        apply_inline=stream(seed, "inline").choice((0.0, 0.5, 1.0)),
        append_inline=stream(seed, "append").choice((0.0, 0.5, 1.0)),
        skew_ms=rng.choice((0, 100, 400)),
        fault_phase_s=rng.choice((6.0, 8.0, 10.0)),
        fault_every_s=rng.choice((0.4, 0.7, 1.0)),
        weights=tuple((kind, weight) for kind, weight in kinds.items() if weight),
        producers=rng.choice((2, 3)),
        window=rng.choice((1, 3, 6)),
        foreign=rng.choice((1, 2)),
        queues=rng.choice((1, 2, 4)),
        body_max=rng.choice((40, 200, 500)),
        think_s=rng.choice((0.03, 0.06)),
        acked_min=rng.choice((220, 260, 320)),
        fetch_bytes_per_second=stream(seed, "fetch").choice((32 << 20, 32 << 20, 60_000)),
    )
    more = _with_more(_with_retention(drawn, stream(seed, "retention")), stream(seed, "more"))
    demanding = _with_demands(_with_clients(more, stream(seed, "clients")), stream(seed, "demands"))
    further: dict[str, Any] = {name: int(stream(seed, name).random() < 1 / 4) for name in IN_A_QUARTER}
    carried = _with_carried(demanding._replace(**further), stream(seed, "carried"))
    if seed >= CONFIG_FROM:
        carried = carried._replace(config=stream(seed, "config").choice((0, 1)))
    if seed >= APPLY_FROM:
        carried = carried._replace(apply_bytes=stream(seed, "apply bytes").choice((1 << 20, 16 << 10, 2 << 10)))
    if seed >= WRITES_FROM:
        carried = carried._replace(writes=int(stream(seed, "writes").random() < 1 / 4))
    if seed >= STALLS_FROM and (rng := stream(seed, "stalled")).random() < 1 / 3:
        carried = carried._replace(stalls=tuple(rng.choice((0, 1, 1, 2)) for _ in STALL_KINDS))
    if seed >= USERS_FROM:
        carried = carried._replace(users=stream(seed, "users").choice((0, 1)))
    if seed >= LEVELS_FROM:
        carried = carried._replace(levels=int(stream(seed, "levels").random() < 1 / 4))
    return _with_tier(carried, seed)


def _with_tier(drawn: Options, seed: int) -> Options:
    """Adds a tier in half of the later seeds."""
    if seed < TIER_FROM or stream(seed, "tier").random() >= 1 / 2:
        return drawn
    # What was evicted is read back one by one in the end.
    tiered = drawn._replace(tier=stream(seed, "evict").choice((1, 2)), event_budget=2 * drawn.event_budget)
    if seed >= TIER_BYTES_FROM and tiered.tier == 2:
        tiered = tiered._replace(tier_bytes=stream(seed, "tier bytes").choice((0, 2, 6)) * tiered.segment_size)
    if seed < TIER_READS_FROM:
        return tiered
    rng = stream(seed, "tier reads")
    tiered = tiered._replace(tier_read=rng.choice((0, 1, 2, 2)), tier_page=rng.choice((0, 2, 5)))
    if seed >= TIER_SEALS_FROM:
        tiered = tiered._replace(tier_seal_ms=stream(seed, "tier seals").choice((0, 300, 1000, 4000)))
    return tiered


_CALM: dict[str, Any] = {
    "nodes": 3, "tick_ms": 25, "election_ticks": 8, "segment_size": 128 << 10, "idle_mark_ms": 50,
    "append_bytes_max": 1 << 20, "batch_bytes_max": 8192, "batch_messages_max": 4096, "batches_inflight_max": 4,
    "node_inflight_bytes_max": 128 << 20, "offsets_flush_ms": 100, "deadline_ms": 3000, "leader_wait_ms": 1000,
    "latency_s": (0.0005, 0.001), "split": 0.0, "disk_s": (0.001, 0.001), "apply_s": (0.0005, 0.0005),
    "apply_inline": 0.0, "append_inline": 0.0, "skew_ms": 0, "weights": (), "producers": 2, "window": 3, "foreign": 1,
    "queues": 1, "body_max": 40, "think_s": 0.03,
}  # fmt: skip


def calm(**chosen: Any) -> Options:
    """Knobs of a run in which nothing is slow, small or broken but for what is `chosen`. Raises ValueError for a name
    that is no option."""
    return draw(0)._replace(**{**Options._field_defaults, **_CALM, **chosen})


def _with_retention(drawn: Options, rng: random.Random) -> Options:
    """Lets old segments go in half of the seeds, so early that a node that is away for seconds needs a snapshot."""
    if rng.random() < 0.5:
        return drawn
    size = rng.choice((12 << 10, 16 << 10, 24 << 10))
    small = drawn._replace(segment_size=size, checkpoint_every_ms=300, retained_bytes=rng.choice((1, 2, 4)) * size)
    return small if rng.random() < 0.7 else small._replace(retained_bytes=0, retained_ms=rng.choice((600, 1500)))


def _with_carried(drawn: Options, rng: random.Random) -> Options:
    """Makes the log, in an eighth of the seeds, so small that what waits is stored again and again."""
    if rng.random() >= 1 / 8:
        return drawn
    size = rng.choice((8 << 10, 12 << 10))
    small = drawn._replace(segment_size=size, checkpoint_every_ms=300, retained_bytes=rng.choice((1, 2)) * size)
    return small._replace(carried=1, delayed=1, transactions=rng.choice((0, 1)), retained_ms=0)


def _with_more(drawn: Options, rng: random.Random) -> Options:
    """Adds, in half of the seeds, orderly stops, faults of single links, weak acknowledgements, alone or together."""
    if rng.random() < 0.5:
        return drawn
    stops = rng.choice((0, 1, 2, 4))
    half_open, acks_lost = rng.choice(((0, 0), (0, 1), (1, 0), (1, 2), (2, 1)))
    weak = rng.choice((0.0, 0.3, 0.7))
    flush = rng.choice(((0, 0), (1, 0), (1, 1))) if weak else (0, 0)
    return drawn._replace(
        added=(stops, half_open, acks_lost),
        weak=weak,
        flush_async=flush[0],
        memory_pool=flush[1],
        foreign=drawn.foreign + (2 if weak else 0),
        catch_up_bytes_per_second=rng.choice((32 << 20, 32 << 20, 40_000)),
    )


def _with_clients(drawn: Options, rng: random.Random) -> Options:
    """Adds, in half of the seeds, clients that mean harm, that mix kinds of commits, that change what others use."""
    if rng.random() < 0.5:
        return drawn
    hostile, tides, remakes = rng.choice(((1, 1, 1), (1, 0, 0), (0, 2, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)))
    small = rng.choice((0, 20_000)) if hostile else 0
    later = rng.choice((0, 1, 2)), rng.choice((0, 0, 1, 2)), 0, 0
    socket_bytes = rng.choice((2 << 10, 16 << 10)) if hostile else 256 << 10
    return drawn._replace(
        hostile=hostile,
        tides=tides,
        remakes=remakes,
        socket_bytes=socket_bytes,
        later=later,
        unsent_bytes=rng.choice((32 << 10, 256 << 10)) if hostile else drawn.unsent_bytes,
        stepped=rng.choice((0.0, 0.0, 0.2, 0.7)),
        node_inflight_bytes_max=small or drawn.node_inflight_bytes_max,
    )


def _with_demands(drawn: Options, rng: random.Random) -> Options:
    """Adds, in half of the seeds, clients that mean no harm, each of which knows one thing that must hold; power that
    goes as soon as rows are said to be synced; leaders that go before others have applied what they acknowledged.
    """
    if rng.random() < 0.5:
        return drawn
    waits, seekers, repeats = (rng.choice((0, 1)) for _ in range(3))
    tales = rng.choice((0.0, 0.25))
    crashes, stepped = rng.choice((0, 0, 2, 4)), rng.choice((0.0, 0.5))
    late = rng.choice((0, 1, 2))
    return drawn._replace(
        waits=waits,
        seekers=seekers,
        repeats=repeats,
        tales=tales,
        tides=drawn.tides or (1 if tales else 0),
        later=(*drawn.later[:2], crashes, late),
        stepped=drawn.stepped or (stepped if crashes else 0.0),
    )
