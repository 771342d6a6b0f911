"""The sections about stored data: the log, for how long and where it is kept, and the checks and repairs of its
copies."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from cluster.config.key_facts import CLUSTER, HOST, Unit, of_cluster, of_host
from cluster.config.ranges import within
from cluster.config.section import Milliseconds, Percent, Section


class LogSection(Section, frozen=True, kw_only=True):
    """The commit log on disk. `segment_size_bytes` is used only when a data directory is created."""

    segment_size_bytes: Annotated[int, Meta(ge=64 << 10, le=1 << 30), of_host(Unit.BYTES)] = 64 << 20
    idle_mark_ms: Annotated[Milliseconds, of_host(Unit.MS)] = 10
    page_cache_bytes_max: Annotated[int, Meta(ge=0, le=1 << 50), of_host(Unit.BYTES)] = 256 << 20
    """The bytes of the newest log that stay in the page cache; 0: the operating system decides."""
    slow_append_ms: Annotated[int, Meta(ge=0, le=60_000), of_host(Unit.MS)] = 250
    """Milliseconds from which an append counts as slow. If more than 1 % are slow, the alarm `disk_slow` is raised. 0:
    no append is slow."""


class BackupSection(Section, frozen=True, kw_only=True):
    """Backups that this node makes of itself on a schedule."""

    to: Annotated[str, HOST] = ""
    """The backups' target: an absolute path, or the URL of an object store (as tier.url); "" for none."""
    every_minutes: Annotated[int, Meta(ge=1, le=10_080), of_host(Unit.MINUTES)] = 60
    keep: Annotated[int, Meta(ge=1, le=100_000), of_host(Unit.NONE)] = 24
    roots: Annotated[str, of_host(reload=True)] = ""
    """Further targets for backups that are requested over HTTP. They are absolute paths and URLs, separated by ";"; a
    backup may go to one of them or below it."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every directory or URL at or below which backups may be written."""
        return tuple(each.strip() for each in (*self.roots.split(";"), self.to) if each.strip())


class RetentionSection(Section, frozen=True, kw_only=True):
    """Retention of messages in the log, read or not. Whole segment files are removed, never the newest."""

    hours: Annotated[int, Meta(ge=0, le=876_000), of_cluster(Unit.HOURS)] = 72
    """The hours of log time for which messages are kept; 0: for ever."""
    ms: Annotated[
        int,
        Meta(
            ge=0,
            extra=within(
                1000, 1 << 50, usual=(60_000, 1 << 50), zero=True, why="messages go within a minute, consumed or not"
            ),
        ),
        of_cluster(Unit.MS),
    ] = 0
    """The milliseconds of log time for which messages are kept; unless it is 0, it replaces `hours`."""
    bytes_max: Annotated[int, Meta(ge=0, extra=within(64 << 10, 1 << 60, zero=True)), of_cluster(Unit.BYTES)] = 0
    """The bytes of log that are kept; 0: no limit."""
    protect_unconsumed: Annotated[bool, CLUSTER] = False
    """True if messages that a consumer group has not consumed are kept, whatever the other keys say."""
    delete_when: Annotated[str, CLUSTER] = "04"
    """The hours of the day, in the leader's local time, at which expired segments are removed ("04;16"); "" for any
    time."""
    every_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(50, 3_600_000)), of_cluster(Unit.MS)] = 10_000
    disk_max_used_percent: Annotated[Percent, of_cluster(Unit.PERCENT)] = 75
    """The use of the disk above which expired segments are removed at any hour."""
    disk_force_clean_percent: Annotated[Percent, of_cluster(Unit.PERCENT)] = 85
    """The use of the disk above which the oldest segments are removed although they have not expired."""
    disk_refuse_writes_percent: Annotated[
        int,
        Meta(ge=1, le=100, extra=within(1, 100, usual=(50, 100), why="writes are refused on a half empty disk")),
        of_cluster(Unit.PERCENT),
    ] = 90
    """The use of the disk above which writes are refused."""
    disk_rate_ms: Annotated[int, Meta(ge=1000, le=86_400_000), of_cluster(Unit.MS)] = 600_000
    """Milliseconds for which the growth of the disk's use is observed before the node forecasts when the disk will be
    full. At most six times as long is taken into account."""
    delete_batch_files: Annotated[int, Meta(ge=1, le=1000), of_cluster(Unit.NONE)] = 10
    """The most segments that one TRIM removes."""
    delete_gap_ms: Annotated[int, Meta(ge=0, le=60_000), of_host(Unit.MS, reload=True)] = 100
    """The pause between the removal of one file and the next, in milliseconds."""

    @property
    def keep_ms(self) -> int:
        """Milliseconds for which messages are kept, unless their topic says otherwise; 0: for ever."""
        return self.ms or self.hours * 3_600_000

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours in `delete_when` as numbers; empty for any time. Raises ValueError if they are not distinct hours
        from 00 to 23."""
        words = [word.strip() for word in self.delete_when.split(";")] if self.delete_when.strip() else []
        hours = frozenset(int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 2)
        if len(words) != len(hours) or not hours <= set(range(24)):
            raise ValueError(f'"{self.delete_when}" is not a list of distinct hours from 00 to 23')
        return hours


class TierSection(Section, frozen=True, kw_only=True):
    """The tier: the object store to which sealed segments are uploaded, to be kept and read when the nodes have removed
    them. The `url` must be the same on every node, because any node may lead."""

    url: Annotated[str, HOST] = ""
    """The store: "file:///path" or the URL of a bucket and a prefix in it; "" for none."""
    stop_grace_ms: Annotated[int, Meta(ge=0, le=86_400_000), of_cluster(Unit.MS)] = 60_000
    """The milliseconds for which `raftmq down` waits until all of the log is in the tier."""
    seal_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            extra=within(
                60_000,
                604_800_000,
                usual=(600_000, 604_800_000),
                zero=True,
                why="a quiet cluster closes more than 50,000 segments a year, and each is a row of the state for as "
                "long as the tier keeps it",
            ),
        ),
        of_cluster(Unit.MS),
    ] = 3_600_000
    """The age of a message, in milliseconds of log time, at which its segment is closed and uploaded although it is not
    full; 0: only full segments are uploaded."""
    evict: Annotated[bool, CLUSTER] = False
    """True if the tier keeps the messages that retention removes from the nodes."""
    retention_hours: Annotated[int, Meta(ge=0, le=876_000), of_cluster(Unit.HOURS)] = 0
    """The hours of log time for which the tier keeps what has left the nodes; 0: for ever."""
    retention_ms: Annotated[int, Meta(ge=0, extra=within(1000, 1 << 50, zero=True)), of_cluster(Unit.MS)] = 0
    """Milliseconds of log time for which the tier keeps what has left the nodes. Unless it is 0, it replaces
    `retention_hours`."""
    read: Annotated[Literal["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"], CLUSTER] = "NOT_IN_DISK"
    """The messages that pulls read from the tier (RocketMQ's tieredStorageLevel). NOT_IN_DISK: those that this node no
    longer has. NOT_IN_MEM: also those further behind than `modes.access_message_in_memory_max_ratio`. FORCE: all that
    the tier has."""
    bytes_max: Annotated[int, Meta(ge=0, extra=within(64 << 10, 1 << 60, zero=True)), of_cluster(Unit.BYTES)] = 0
    """The most bytes of objects in the tier. Only objects whose messages have left the nodes are removed. 0: no
    limit."""
    delete_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000), of_host(Unit.MS)] = 60_000
    """Milliseconds between the log entry that announces the removal of objects, and the removal. Readers finish in this
    time, or learn that the objects will be gone."""
    endpoint: Annotated[str, HOST] = ""
    """The address of an S3-compatible store: http://host:port."""
    region: Annotated[str, HOST] = ""
    path_style: Annotated[bool, HOST] = True
    """True for object URLs of the form endpoint/bucket/name; False for bucket.endpoint/name."""
    ca_file: Annotated[str, HOST] = ""
    """PEM file with CAs that are trusted in addition to the system's."""
    encryption: Annotated[str, HOST] = ""
    """The server-side encryption of S3: AES256, aws:kms, aws:kms:dsse; "" for none."""
    encryption_key_id: Annotated[str, HOST] = ""
    credentials_file: Annotated[str, HOST] = ""
    """The file with the access keys of S3, in the format of ~/.aws/credentials, read again every minute so that the
    keys can be rotated; "" for those of the environment or the machine."""
    credentials_profile: Annotated[str, HOST] = "default"
    bytes_per_second: Annotated[
        int, Meta(ge=0, extra=within(64 << 10, 1 << 40, zero=True)), of_cluster(Unit.BYTES_PER_SECOND)
    ] = 0
    """The average rate of uploads in bytes per second; 0: no limit."""
    cache_bytes_max: Annotated[int, Meta(ge=0, extra=within(1 << 20, 1 << 60, zero=True)), of_host(Unit.BYTES)] = (
        1 << 30
    )
    """The bytes on this node's disk for a cache of what is read from the tier; 0: no cache."""
    cache_dir: Annotated[str, HOST] = ""
    """The folder of that cache; "" for `tier-cache` in the data directory."""
    state_every_ms: Annotated[int, Meta(ge=0, le=31_536_000_000), of_host(Unit.MS)] = 3_600_000
    """The interval, in milliseconds, at which the leader copies the state into the tier; 0: never."""
    scrub_every_hours: Annotated[int, Meta(ge=0, le=87_600), of_cluster(Unit.HOURS)] = 168
    """The interval, in hours, at which the leader reads the whole tier and repairs it; 0: only on request."""

    @property
    def keep_ms(self) -> int:
        """Milliseconds for which messages are kept in the tier; 0: for ever."""
        return self.retention_ms or self.retention_hours * 3_600_000

    @property
    def evicts(self) -> bool:
        """True if what retention takes from the nodes stays in the tier."""
        return self.evict and bool(self.url)


class RepairSection(Section, frozen=True, kw_only=True):
    """Limits for the data that this node sends to others to repair their disks."""

    bytes_per_second: Annotated[
        int, Meta(ge=1 << 20, extra=within(1 << 20, 1 << 40)), of_host(Unit.BYTES_PER_SECOND, reload=True)
    ] = 32 << 20


class ConsistencySection(Section, frozen=True, kw_only=True):
    """The interval at which replicas are compared, and the interval at which each node reads all of its disk to find
    damage (0: never)."""

    digest_every_ms: Annotated[int, Meta(ge=1, le=86_400_000, extra=within(1000, 3_600_000)), of_cluster(Unit.MS)] = (
        60_000
    )
    scrub_every_hours: Annotated[int, Meta(ge=0, le=8760), of_host(Unit.HOURS)] = 24
    scrub_bytes_per_second: Annotated[
        int, Meta(ge=64 << 10, extra=within(64 << 10, 1 << 40)), of_host(Unit.BYTES_PER_SECOND)
    ] = 16 << 20
