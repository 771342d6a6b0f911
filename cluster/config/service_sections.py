"""The sections about services for clients: limits, sends and their acknowledgement, and each kind of message."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from cluster.config.key_facts import CLUSTER, HOST, Unit, of_cluster, of_host
from cluster.config.ranges import within
from cluster.config.section import NonEmptyText, Section


class LimitsSection(Section, frozen=True, kw_only=True):
    """Limits of what one client, and all clients together, may ask for. `profile` names a set of limits
    (cluster/config/cross_key_rules.py)."""

    profile: Annotated[Literal["rocketmq", "report-003"], HOST] = "rocketmq"
    message_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 10, 31 << 20)), of_cluster(Unit.BYTES)] = 4 << 20
    """The largest message in bytes. An entry of the log has up to 32 MiB (`raftlog.frame`): the message, and the rows
    and keys that belong to it."""
    properties_bytes_max: Annotated[int, Meta(ge=1, le=32767, extra=within(1 << 10, 32767)), of_cluster(Unit.BYTES)] = (
        32767
    )
    frame_bytes_max: Annotated[int, Meta(ge=1, extra=within(128 << 10, 48 << 20)), of_cluster(Unit.BYTES)] = 16 << 20
    """The largest remoting frame in bytes. A request is forwarded in one frame between nodes, and these have at most 64
    MiB (`cluster.peer.wire`)."""
    topic_length_max: Annotated[int, Meta(ge=1, le=256, extra=within(64, 256)), of_cluster(Unit.NONE)] = 127
    connection_inflight_bytes_max: Annotated[
        int, Meta(ge=1, extra=within(1 << 20, 1 << 30)), of_cluster(Unit.BYTES)
    ] = 64 << 20
    node_inflight_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 20, 2 << 30)), of_cluster(Unit.BYTES)] = (
        128 << 20
    )
    connection_unsent_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 20, 1 << 30)), of_cluster(Unit.BYTES)] = (
        16 << 20
    )
    node_unsent_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 20, 2 << 30)), of_cluster(Unit.BYTES)] = (
        128 << 20
    )
    stalled_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(1000, 600_000)), of_cluster(Unit.MS)] = 10_000
    batch_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 10, 24 << 20)), of_cluster(Unit.BYTES)] = 1 << 20
    batch_messages_max: Annotated[int, Meta(ge=1, extra=within(16, 65_536)), of_cluster(Unit.MESSAGES)] = 4096
    batches_inflight_max: Annotated[int, Meta(ge=1, extra=within(1, 64)), of_cluster(Unit.NONE)] = 4
    long_polls_max: Annotated[int, Meta(ge=1, extra=within(64, 1_000_000)), of_cluster(Unit.NONE)] = 100_000
    connection_long_polls_max: Annotated[int, Meta(ge=1, extra=within(16, 100_000)), of_cluster(Unit.NONE)] = 10_000
    filter_units_max: Annotated[int, Meta(ge=1_000, le=10_000_000), of_cluster(Unit.SLOW_MICROSECONDS)] = 100_000
    """The most microseconds, on a slow core, that an SQL92 filter may take for a message with the longest
    properties."""
    connections_max: Annotated[int, Meta(ge=1, extra=within(16, 1_000_000)), of_cluster(Unit.NONE)] = 10_000
    topics_max: Annotated[int, Meta(ge=1, extra=within(64, 1_000_000)), of_cluster(Unit.NONE)] = 50_000
    queues_max: Annotated[int, Meta(ge=1, extra=within(64, 16_000_000)), of_cluster(Unit.NONE)] = 1_000_000
    groups_max: Annotated[int, Meta(ge=1, extra=within(64, 1_000_000)), of_cluster(Unit.NONE)] = 20_000


class SendSection(Section, frozen=True, kw_only=True):
    """Time limits of a write. A write that is undecided after `deadline_ms` is answered as unknown. Without a leader, a
    write is held for a while and then refused."""

    deadline_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(100, 600_000)), of_cluster(Unit.MS)] = 3000
    leader_wait_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(10, 600_000)), of_cluster(Unit.MS)] = 2000


class FlowSection(Section, frozen=True, kw_only=True):
    """Limits for an overload, in which more sends arrive at the leader than its log can take
    (`cluster.flow.admission_limit`)."""

    admission: Annotated[bool, of_host(reload=True)] = True
    house_ms: Annotated[int, Meta(ge=1, le=600_000, extra=within(10, 60_000)), of_host(Unit.MS, reload=True)] = 70
    """Milliseconds from the arrival of a send to its commit in an overload. Sends that would take longer are
    refused."""
    house_bytes_min: Annotated[int, Meta(ge=1, extra=within(1 << 10, 1 << 30)), of_host(Unit.BYTES, reload=True)] = (
        512 << 10
    )
    """Bytes of sends that are always accepted, however slow the log is: about 400 sends of 1 KiB."""
    hold_ms: Annotated[int, Meta(ge=0, extra=within(0, 2_500)), of_host(Unit.MS, reload=True)] = 1_000
    """Milliseconds for which a send over a quota waits before it is refused. It is less than the shortest timeout of a
    client (3 s)."""
    hold_bytes_max: Annotated[int, Meta(ge=1, extra=within(1 << 16, 1 << 30)), of_host(Unit.BYTES, reload=True)] = (
        8 << 20
    )
    """The most bytes of one owner's sends that may wait because of a quota. Sends of all owners together may have eight
    times as many."""


class ReplicationSection(Section, frozen=True, kw_only=True):
    """Settings of replication, which should be the same on every node: the level at which a leader answers sends while
    the majority is slow, and whether entries are sent later to voters that no commit waits for."""

    degrade: Annotated[Literal["off", "leader"], of_host(reload=True)] = "off"
    """With "leader", sends of the default level are answered at level `leader` as long as the majority is slow and the
    leader is not (`cluster.replication.acks.slow_quorum`)."""
    degrade_ms: Annotated[int, Meta(ge=1, le=60_000, extra=within(10, 60_000)), of_host(Unit.MS, reload=True)] = 100
    """Milliseconds between a write on the leader's disk and on the disks of a majority, from which on the majority
    counts as slow."""
    thrifty: Annotated[Literal["off", "on"], HOST] = "off"
    """With "on", a leader with few entries in flight sends them at once only to the quickest voters that a majority
    needs, and to the others a little later (`raftlog.core.held_appends`)."""


class ModesSection(Section, frozen=True, kw_only=True):
    """Settings with RocketMQ's names: when a send is answered, and which nodes answer pulls. Weaker modes only answer
    earlier."""

    flush_disk_type: Annotated[Literal["SYNC_FLUSH", "ASYNC_FLUSH"], CLUSTER] = "SYNC_FLUSH"
    broker_role: Annotated[Literal["SYNC_MASTER", "ASYNC_MASTER"], CLUSTER] = "SYNC_MASTER"
    transient_store_pool_enable: Annotated[bool, CLUSTER] = False
    """True to answer sends of level `leader` before they are written to disk, if the mode is ASYNC_FLUSH."""
    all_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(10, 600_000)), of_cluster(Unit.MS)] = 2000
    """The milliseconds that a send of level `all` waits for the last voter's disk once a majority has the message."""
    slave_read_enable: Annotated[bool, CLUSTER] = False
    """True if consumers that are far behind are sent to a follower."""
    access_message_in_memory_max_ratio: Annotated[int, Meta(ge=0, le=100), of_cluster(Unit.PERCENT)] = 40
    """Percentage of the memory. A consumer that lags by more bytes needs reads from a disk, preferably a follower's."""


class TopicsSection(Section, frozen=True, kw_only=True):
    """Settings for topics that nobody created, and for topics whose traffic is too much for one group of brokers."""

    auto_create: Annotated[bool, CLUSTER] = True
    default_queues: Annotated[int, Meta(ge=1, le=1024), of_cluster(Unit.NONE)] = 8
    spread: Annotated[Literal["off", "auto"], CLUSTER] = "off"
    """With "auto", a topic without `order` that keeps the leader of its group busy gets queues in all groups."""
    gather_after_ms: Annotated[int, Meta(ge=1_000, le=604_800_000), of_cluster(Unit.MS)] = 600_000
    """Milliseconds without much traffic after which a topic that was spread takes messages only in its former groups
    again."""


class TimerSection(Section, frozen=True, kw_only=True):
    """Scheduled messages, which are delivered later."""

    delay_levels: Annotated[NonEmptyText, CLUSTER] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """RocketMQ's messageDelayLevel: the delays of levels 1, 2, ..., with the units s, m, h, d."""
    max_delay_ms: Annotated[int, Meta(ge=1, le=31_536_000_000), of_cluster(Unit.MS)] = 259_200_000
    """The longest delay, in milliseconds, of a message that names its own delivery time."""


class IndexSection(Section, frozen=True, kw_only=True):
    """The message index: with `enabled`, a leader writes the keys of messages into it (RocketMQ: messageIndexEnable);
    with `files`, a node keeps an index file beside each closed segment."""

    enabled: Annotated[bool, CLUSTER] = True
    files: Annotated[bool, HOST] = False


class OffsetsSection(Section, frozen=True, kw_only=True):
    """Oneway commits of consumer offsets. They enter the log at the latest after `flush_ms`."""

    flush_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            extra=within(1, 10_000, usual=(1, 1000), why="a change of the leader forgets what consumers committed"),
        ),
        of_cluster(Unit.MS),
    ] = 100


class DedupSection(Section, frozen=True, kw_only=True):
    """The log time for which a producer session and its unique keys are remembered."""

    session_hours: Annotated[int, Meta(ge=1, le=8760), of_cluster(Unit.HOURS)] = 24


_SOON = "transactions are rolled back before their producers could answer"


class TransactionSection(Section, frozen=True, kw_only=True):
    """The times at which producers are asked about half messages whose transaction nobody has ended (RocketMQ:
    transactionTimeOut and others)."""

    timeout_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000, extra=within(100, 86_400_000, usual=(1000, 86_400_000), why=_SOON)),
        of_cluster(Unit.MS),
    ] = 6000
    check_interval_ms: Annotated[
        int,
        Meta(ge=1, le=86_400_000, extra=within(100, 86_400_000, usual=(1000, 86_400_000), why=_SOON)),
        of_cluster(Unit.MS),
    ] = 30_000
    check_max: Annotated[
        int, Meta(ge=1, le=1000, extra=within(1, 1000, usual=(3, 1000), why=_SOON)), of_cluster(Unit.NONE)
    ] = 15


class WritesSection(Section, frozen=True, kw_only=True):
    """Spark's staged writes: messages that are stored before they are committed."""

    expire_ms: Annotated[int, Meta(ge=60_000, le=30 * 86_400_000), of_cluster(Unit.MS)] = 86_400_000
    """The milliseconds of log time after which an attempt that nobody committed, and for which nothing more was staged,
    is discarded."""
