"""The options that a seed draws before its run: the cluster's settings, the machines, the load, and the probable
faults."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from statemachine.levels import LEVEL

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
"""Kinds of faults that are drawn by weight. docs/internals/simulated-checks.md says what each does, and what else a
plan holds."""
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
"""Kinds of faults that begin when the cluster reaches a certain state instead of at a certain time."""
ADDED_KINDS = ("stop", "half-open", "acks-lost")
"""Kinds of faults that `Options.added` counts: some seeds have them in addition to the drawn ones."""
LATER_KINDS = ("hold-apply", "late-refusal", "crash-after-sync", "late-apply")
"""Kinds of faults that `Options.later` counts."""
STALL_KINDS = ("stall", "stall-more", "stall-before-election", "stall-beside-cut")
"""Kinds of faults that `Options.stalls` counts."""
GROUP_KINDS = ("groups-apart", "first-headless")
"""Kinds of faults between groups, which seeds with nodes of a second one have (`sim/groups/group_faults.py`)."""

TIER_BYTES_FROM = 2_500_000
"""First seed with runs whose tier keeps only a limited number of bytes."""
TIER_READS_FROM = 2_600_000
"""First seed with runs that read from the tier although the nodes have the messages, or whose manifests have small
pages."""
TIER_FROM = 2_000_000
"""First seed from which on half of the seeds have tiered storage. Results of earlier seeds are recorded, so those runs
stay as they were.
"""
CONFIG_FROM = 3_000_000
"""First seed from which on, in half of the seeds, the leader writes the cluster's configuration into the log."""
STALLS_FROM = 4_000_000
"""First seed from which on a third of the seeds have stalls (turns of an event loop that take long)."""
WRITES_FROM = 3_000_000
"""First seed from which on a quarter of the seeds have writers (`sim/clients/staged_writers.py`)."""
LONG_WORK_FROM = 3_800_000
"""First seed in which hostile clients also send requests whose work a node must cut into steps."""
MANY_FROM = 4_700_000
"""First seed in which hostile clients also create groups with very many members, and topics with very many rows."""
APPLY_FROM = 4_200_000
"""First seed in which the entries that wait are often applied in several drains."""
TIER_SEALS_FROM = 4_600_000
"""First seed with runs whose tier closes segments for their age."""
USERS_FROM = 5_000_000
"""First seed from which on half of the seeds have users and access rules."""
LEVELS_FROM = 5_200_000
"""First seed from which on a quarter of the seeds have nodes of two versions, and finalize the cluster's level."""
RESIZED_FROM = 5_300_000
"""First seed from which on a quarter of the seeds have a topic whose number of queues goes up and down."""
APART_FROM = 5_300_000
"""First seed from which on a quarter of the seeds have a consumer group whose members want different topics."""
SURGES_FROM = 954_000_000
"""First seed from which on a quarter of the seeds have clients that send more than the log takes."""
GROUPS_FROM = 970_000_000
"""First seed from which on a quarter of the seeds have a second group of brokers."""
SECOND_FROM = 980_000_000
"""First seed from which on a quarter of the seeds have a second group of brokers with nodes."""
GROUP_WRITES_FROM = 981_000_000
"""First seed from which on half of the seeds with nodes of a second group have a writer to both groups."""
RETIRES_FROM = 983_000_000
"""First seed from which on, in half of the seeds with nodes of a second group, that group retires."""
DRAINS_FROM = 982_000_000
"""First seed from which on half of the seeds with a second group, but without nodes of it, have drains."""
QUOTAS_FROM = 983_000_000
"""First seed from which on a quarter of the seeds without nodes of two versions have quotas that come and go."""
GATHERS_FROM = 986_000_000
"""First seed from which on half of the seeds with nodes of a second group have a topic that leaves that group."""
REGISTRY_FROM = 990_000_000
"""First seed from which on half of the seeds with nodes of a second group have a registry."""
THRIFTY_FROM = 998_000_000
"""First seed from which on half of the seeds set `replication.thrifty`."""
HELD_FROM = 998_134_000
"""First seed from which on, in a third of the seeds, leaders apply all small runs on the loop, so that they often hold
runs back whose sends are answered (`cluster.replication.apply_lane.HeldRuns`)."""
ROOT = ("root", "root-secret")
"""Name and secret of the Super user in seeds with users."""
IN_A_QUARTER = ("ordered", "transactions", "delayed", "failures", "resets", "legacies")
"""Options whose clients a quarter of the seeds have, each drawn independently."""


def stream(seed: int, name: str) -> random.Random:
    """Returns a named random generator of the seed: draws under a new name do not change the draws under other
    names."""
    return random.Random(f"{seed}:{name}")


class Options(NamedTuple):
    """All options that `draw` draws for a seed. Times are in seconds unless the name says otherwise; options that are 0
    or 1 are switches."""

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
    """Share (0 to 1) of the eligible appends that are written on the event loop (`cluster.replication.append_runner`);
    0: none."""
    skew_ms: int
    fault_phase_s: float
    fault_every_s: float
    weights: tuple[tuple[str, int], ...]
    """(fault kind, weight) for drawing faults; a kind of weight 0 never occurs."""
    producers: int
    window: int
    foreign: int
    queues: int
    body_max: int
    think_s: float
    acked_min: int
    event_budget: int = 1_000_000
    """Number of events after which a run counts as a livelock: about twice as many as the longest clean run needs. That
    run has small batches (3 messages, one in flight), and stalls of all nodes after the faults.
    """
    checkpoint_every_ms: int = 2000
    retained_bytes: int = 0
    """Bytes of log that retention keeps; 0: all."""
    retained_ms: int = 0
    """Log time in milliseconds for which retention keeps the log; 0: forever."""
    fetch_bytes_per_second: int = 32 << 20
    """Bytes per second that a node serves to other nodes that fetch segments or snapshots from it."""
    added: tuple[int, ...] = (0, 0, 0)
    """Number of faults of each of ADDED_KINDS in the plan."""
    weak: float = 0.0
    """Share (0 to 1) of the foreign clients' single sends that ask for a weaker acknowledgement."""
    flush_async: int = 0
    """1: the node's own acknowledgement level is `quorum`, and the topics ask for a stronger one."""
    memory_pool: int = 0
    """1: a leader may acknowledge at level `leader` before it has written the message."""
    catch_up_bytes_per_second: int = 32 << 20
    """Bytes per second that a leader reads from its disk for all nodes together that catch up."""
    hostile: int = 0
    """1: there is a hostile client (`sim/hostile/hostile_clients.py`), during the faults and after the heal."""
    tides: int = 0
    """Number of clients that commit one offset again and again, oneway and with answers, on one connection
    (`sim/clients/offset_commits.py`)."""
    remakes: int = 0
    """1: topics are deleted, created again and changed while messages flow (`sim/clients/recreated_topics.py`)."""
    stepped: float = 0.0
    """Share (0 to 1) of a lane's drains that run step by step (`sim/machines/lane_steps.py`)."""
    later: tuple[int, ...] = (0, 0, 0, 0)
    """Number of faults of each of LATER_KINDS in the plan."""
    waits: int = 0
    """1: pulls are parked on topics that are created and deleted meanwhile (`sim/clients/parked_pulls.py`)."""
    seekers: int = 0
    """1: a client looks for acknowledged messages by their keys through any node (`sim/clients/key_searchers.py`)."""
    repeats: int = 0
    """1: a producer repeats sends that are already stored (`sim/clients/repeated_sends.py`)."""
    tales: float = 0.0
    """Share (0 to 1) of the rounds of the `tides` clients that are a few steps in a fixed order followed by silence."""
    ordered: int = 0
    """1: consumers lock queues to read in order, and other clients end locks (`sim/locks/ordered_consumers.py`)."""
    transactions: int = 0
    """1: there are producers of transactions (`sim/clients/transaction_producers.py`)."""
    delayed: int = 0
    """1: a producer sends delayed messages (`sim/clients/delayed_messages.py`)."""
    failures: int = 0
    """1: consumers report messages that they fail to process (`sim/clients/failing_consumers.py`)."""
    resets: int = 0
    """1: an operator resets the offsets of a group while it consumes (`sim/clients/reset_clients.py`)."""
    legacies: int = 0
    """1: topics and groups are deleted while messages wait, and created again (`sim/clients/deleted_topics.py`)."""
    carried: int = 0
    """1: messages wait for longer than retention keeps the log (`sim/clients/delayed_messages.py`,
    `sim/checks/retention_pin_check.py`)."""
    unsent_bytes: int = 16 << 20
    """The setting limits.connection_unsent_bytes_max, in bytes; a node keeps four times as much in all."""
    socket_bytes: int = 256 << 10
    """Bytes that the kernels hold for a sender whose reader is slow."""
    apply_bytes: int = 1 << 20
    """`Environment.apply_bytes` of the nodes, in bytes."""
    tier_bytes: int = 0
    """Bytes of objects that the tier keeps; 0: all."""
    tier: int = 0
    """1: sealed segments are uploaded to an object store that has faults too (`sim/machines/tier_store.py`). 2: in
    addition, the tier keeps the messages that retention removes from the nodes."""
    tier_read: int = 0
    """Index in `cluster.broker.reads.tier_read_policy.LEVELS` of the setting `tier.read`, which says which messages
    pulls read from the tier."""
    tier_page: int = 0
    """Number of segments in a full page of the manifest; 0: as in production."""
    tier_seal_ms: int = 0
    """The setting `tier.seal_after_ms`, in milliseconds. If it is set, no message may be missing in the tier at the
    end."""
    config: int = 0
    """1: the leader writes the cluster's configuration into the log (`cluster.node.cluster_config`)."""
    writes: int = 0
    """1: writers stage and commit rows as Spark's sink does (`sim/clients/staged_writers.py`)."""
    stalls: tuple[int, ...] = (0, 0, 0, 0)
    """Number of faults of each of STALL_KINDS in the plan; if there are any, there are more stalls after the heal
    (`sim/faults/stall_faults.py`)."""
    users: int = 0
    """1: nodes check access rights, and users are created, deleted and changed (`sim/users`)."""
    levels: int = 0
    """1: nodes begin with the older version, and are upgraded, downgraded and finalized (`sim/upgrades.py`)."""
    begins: int = 0
    """The highest level that the older version knows; 0: the level below the newest one."""
    resized: int = 0
    """1: a topic's number of queues goes up and down, and groups commit offsets beyond the end of a queue
    (`sim/clients/resized_topics.py`)."""
    apart: int = 0
    """1: members of one group want different topics (`sim/clients/members_apart.py`)."""
    surges: int = 0
    """1: a client sends more than the log takes, and another a little beside it (`sim/clients/surges.py`)."""
    groups: int = 0
    """1: a second group of brokers is added, and copies the truth of the first (`sim/broker_groups.py`)."""
    second: int = 0
    """1: three nodes of a second group of brokers run beside the first one (`sim/groups`)."""
    group_writes: int = 0
    """1: with `second`, a writer stages batches for queues of both groups (`sim/groups/placed_writers.py`)."""
    drains: int = 0
    """1: with `groups`, the operator now and then starts to drain the second group, or cancels the drain."""
    quotas: int = 0
    """1: an operator sets quotas and takes them away (`sim/quotas.py`)."""
    retires: int = 0
    """1: with `second`, that group retires in the end (`sim/groups/retirement.py`)."""
    gathers: int = 0
    """1: with `second`, a topic leaves that group in the end, and comes back (`sim/groups/gathering.py`)."""
    registry: int = 0
    """1: with `second`, there are three processes of a registry, with faults of their own (`sim/registry`)."""
    thrifty: int = 0
    """1: leaders hold appends back from voters that no commit waits for (`raftlog.core.held_appends`)."""
    plain: int = 0
    """1: half messages, and messages that wait while their topic is deleted, name no acknowledgement level, so that the
    native kernel may handle the sends."""

    @property
    def older(self) -> int:
        """The highest level that the older version knows."""
        return self.begins or LEVEL - 1

    @property
    def gives_config(self) -> bool:
        """True if the cluster gets a configuration in its log, and with it its level."""
        return bool(self.config or self.users or self.levels or self.apart or self.groups or self.quotas)

    def describe(self) -> str:
        """Returns all options as one line of text."""
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
    """Draws the options of a seed."""
    rng = stream(seed, "options")
    kinds = {kind: rng.choice((0, 1, 1, 3)) for kind in FAULT_KINDS}
    if rng.random() < 1 / 3:  # a third of the seeds draw no trigger but crash-before-ack
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
    if seed >= RESIZED_FROM:
        carried = carried._replace(resized=int(stream(seed, "resized").random() < 1 / 4))
    if seed >= APART_FROM:
        carried = carried._replace(apart=int(stream(seed, "apart").random() < 1 / 4))
    if seed >= SURGES_FROM and stream(seed, "surges").random() < 1 / 4:
        carried = _with_surges(carried)
    if seed >= GROUPS_FROM:
        carried = carried._replace(groups=int(stream(seed, "groups").random() < 1 / 4))
    if seed >= SECOND_FROM and stream(seed, "second group").random() < 1 / 4:
        # Nodes of the older version do not support further groups of brokers.
        carried = carried._replace(second=1, groups=1, levels=0, event_budget=2 * carried.event_budget)
        if seed >= GROUP_WRITES_FROM:
            carried = carried._replace(group_writes=stream(seed, "group writes").choice((0, 1)))
    if seed >= DRAINS_FROM and carried.groups and not carried.second:
        carried = carried._replace(drains=stream(seed, "drains").choice((0, 1)))
    if seed >= QUOTAS_FROM and not carried.levels:
        carried = carried._replace(quotas=int(stream(seed, "quotas").random() < 1 / 4))
    if seed >= RETIRES_FROM and carried.second:
        carried = carried._replace(retires=stream(seed, "retires").choice((0, 1)))
    if seed >= GATHERS_FROM and carried.second:
        carried = carried._replace(gathers=stream(seed, "gathers").choice((0, 1)))
    if seed >= REGISTRY_FROM and carried.second:
        carried = carried._replace(registry=stream(seed, "registry").choice((0, 1)))
    if seed >= THRIFTY_FROM and stream(seed, "thrifty").choice((0, 1)):
        carried = _with_thrift(carried, stream(seed, "thrift"))
    if seed >= HELD_FROM and stream(seed, "held runs").random() < 1 / 3:
        carried = carried._replace(apply_inline=1.0, apply_bytes=1 << 20, weak=0.0)
    return _with_tier(carried, seed)


def _with_thrift(drawn: Options, rng: random.Random) -> Options:
    """Sets the options with which leaders hold appends back. A leader does so only while its disk is quick, so these
    runs have quick disks and, mostly, few entries in flight.
    """
    thrifty = drawn._replace(thrifty=1, append_inline=rng.choice((0.5, 1.0, 1.0)))
    if drawn.surges or rng.random() < 1 / 3:
        return thrifty
    return thrifty._replace(window=1, batch_messages_max=4096, batches_inflight_max=min(2, drawn.batches_inflight_max))


def _with_surges(drawn: Options) -> Options:
    """Adds surges, and raises all limits except those of an overload, so that no other limit is reached first."""
    deadline_ms, budget = max(3000, drawn.deadline_ms), 2 * drawn.event_budget
    return drawn._replace(surges=1, node_inflight_bytes_max=128 << 20, deadline_ms=deadline_ms, event_budget=budget)


def _with_tier(drawn: Options, seed: int) -> Options:
    """Adds tiered storage in half of the seeds from TIER_FROM on."""
    if seed < TIER_FROM or stream(seed, "tier").random() >= 1 / 2:
        return drawn
    # At the end, evicted messages are read back from the tier one by one, which takes long.
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
    """Returns the options of a run in which nothing is slow, small or broken, with the options in `chosen` changed.
    Raises ValueError for a name that is no option.
    """
    if unknown := sorted(chosen.keys() - set(Options._fields)):
        raise ValueError(f"no option of a run: {', '.join(unknown)}")
    return draw(0)._replace(**{**Options._field_defaults, **_CALM, **chosen})


def _with_retention(drawn: Options, rng: random.Random) -> Options:
    """Adds retention in half of the seeds. It removes segments so early that a node which is away for seconds needs a
    snapshot."""
    if rng.random() < 0.5:
        return drawn
    size = rng.choice((12 << 10, 16 << 10, 24 << 10))
    small = drawn._replace(segment_size=size, checkpoint_every_ms=300, retained_bytes=rng.choice((1, 2, 4)) * size)
    return small if rng.random() < 0.7 else small._replace(retained_bytes=0, retained_ms=rng.choice((600, 1500)))


def _with_carried(drawn: Options, rng: random.Random) -> Options:
    """Makes the retained log so small, in an eighth of the seeds, that waiting messages are carried forward again and
    again."""
    if rng.random() >= 1 / 8:
        return drawn
    size = rng.choice((8 << 10, 12 << 10))
    small = drawn._replace(segment_size=size, checkpoint_every_ms=300, retained_bytes=rng.choice((1, 2)) * size)
    return small._replace(carried=1, delayed=1, transactions=rng.choice((0, 1)), retained_ms=0)


def _with_more(drawn: Options, rng: random.Random) -> Options:
    """Adds orderly stops, faults of single links and weak acknowledgements, alone or together, in half of the seeds."""
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
    """Adds, in half of the seeds, clients that are hostile, mix kinds of commits, or change topics while messages flow.
    With them come faults around a leader (`later`) and, by chance, drains that run step by step and small limits."""
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
    """Adds, in half of the seeds, harmless clients that each check one promise, power failures right after rows are
    reported as synced, and crashes of leaders before other nodes have applied what the leader acknowledged."""
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
