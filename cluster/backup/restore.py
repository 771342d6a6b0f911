"""Makes a new cluster from a backup. Every node gets the log and the state of the backup, and a MEMBERSHIP entry after
them.

The new cluster has its own uuid, so none of its nodes is ever taken for a node of the old cluster, which may still run.
IDENTITY records which cluster it comes from. Everything is made under `<into>.partial`, which is renamed when it is
complete.
"""

from __future__ import annotations

import errno
import shlex
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from cluster.backup import files
from cluster.backup import manifest as manifests
from cluster.backup.from_tier import Rebuilt, TierRestore, rebuild
from cluster.backup.manifest import LOG, STATE, FileRecord, Manifest, SegmentRecord
from cluster.backup.remote import fetch_backup, is_url
from cluster.backup.replay import RestoreTarget
from cluster.backup.revived import Revived, revived_in
from cluster.backup.segments import read_header
from cluster.backup.tier_clusters import RestorePoint
from cluster.backup.verify import genesis_of, verify
from cluster.config.config import dump
from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import GroupFacts, plan_all, write_configs, write_group_configs
from cluster.peer.secret_files import give, keys_of_new
from raftlog import membership as memberships
from raftlog.errors import RaftLogError, out_of_space
from raftlog.frame import make_entry
from raftlog.membership import Membership
from raftlog.storage.files import identity as identities
from raftlog.storage.files import layout, log_first
from raftlog.storage.files.fs import OsFileSystem, write_file
from raftlog.storage.files.genesis import Voter
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.files.identity import Ancestor, Identity
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import MARK_OFFSETS, encode_header, encode_mark, mark_of
from raftlog.types import FIRST_GROUP, NOBODY, EntryType, HardState, LogTail, NodeId
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.cluster_wide.broker_groups import read_groups
from statemachine.commands import pack

FETCHED, BEGUN, LATEST, USERS = ".fetched", ".begun", ".latest", ".users"
"""Suffixes of folders beside the target. FETCHED: the fetched backup, or the one made from a tier. BEGUN: a fetched
backup to which the tier's log is applied. LATEST: the end of the log in the tier, for a comparison of users. USERS: the
backup from which users are taken."""


class RestoreSource(NamedTuple):
    """The options of a restore that name its source: a backup or a tier."""

    backup: str | None = None
    """DIR/NAME or URL/NAME of a backup."""
    tier: str | None = None
    """URL of a tier."""
    cluster_id: str | None = None
    target: RestoreTarget = RestoreTarget()
    rest: tuple[str, ...] = ("--into", "DIR")
    """All other options of the command, as the person typed them."""


class ChosenBackup(NamedTuple):
    """The backup that a restore reads, and a newer copy of its users."""

    path: Path
    rebuilt: Rebuilt | None = None
    """Facts about how the backup was made from a tier; None if it was not."""
    newest: Revived | None = None
    """The users in the newest copy of the cluster that was found, if it is newer than the backup; None if there is
    none."""
    newest_name: str = ""
    """The name of that newer copy, for people; "" if there is none."""


@contextmanager
def found_source(
    source: RestoreSource, into: Path, now_ms: int, on_stage: Callable[[str], None], *, is_first: bool = True
) -> Iterator[ChosenBackup]:
    """Provides the backup as a directory for the duration of the context; what was fetched is then removed. `into` is
    the target of the restore. `is_first`: False for a further group of brokers. Its users are copies of the first
    group's, so no newer ones are looked for. Raises LocalError."""
    into = into.absolute()
    check_unused(source.backup or source.tier or "", into)
    asked = TierRestore(source.tier or "URL", source.target, source.cluster_id, None, source.backup or "", source.rest)
    if source.tier is None:
        if source.target != RestoreTarget():
            _check_not_before(asked)
            raise LocalError(
                "a backup alone is restored as it is",
                f"{source.target} is reached by applying the log after it, which lies in the tier",
                f"{asked.command()}    (URL: tier.url)",
                ExitCode.USAGE,
            )
        with local_copy(source.backup or "", into, FETCHED, on_stage) as path:
            newest, name = _newest_beside(path) if is_first else (None, "")
            yield ChosenBackup(path, None, newest, name)
        return
    with _to_begin_with(source.backup, into, on_stage) as path:
        asked = asked._replace(backup=path)
        made = rebuild(asked, into.with_name(into.name + FETCHED), now_ms, on_stage)
        try:
            newest = _at_the_end(asked, made, into, now_ms, on_stage) if is_first else None
            yield ChosenBackup(made.path, made, newest, "the end of the log in the tier" if newest else "")
        finally:
            files.remove_tree(made.path)


def _check_not_before(asked: TierRestore) -> None:
    """Raises LocalError if the target lies before a local backup. Applying more of the log to the backup cannot reach
    it."""
    path = Path(asked.backup_name)
    if is_url(asked.backup_name) or not (path / manifests.MANIFEST).exists():
        return
    made = manifests.load(path)
    if asked.target.is_below(made.index, made.timestamp_ms):
        raise LocalError(
            f"{asked.target} lies before the backup {made.name}",
            f"it was made at {RestorePoint(made.index, made.timestamp_ms)}, and nothing can be taken back",
            f"{shlex.join(['raftmq', 'restore', '--from', asked.backup_name, *asked.rest])}    "
            f"(its own moment; raftmq backup list {shlex.quote(str(path.parent))} shows older ones)",
            ExitCode.REFUSED,
        )


def _newest_beside(backup: Path) -> tuple[Revived | None, str]:
    """Returns (users, name) of the newest backup of the cluster in the same folder, if it is newer than `backup`; else
    (None, "")."""
    own = manifests.load(backup)
    newest = files.newest(backup.parent, own.cluster_uuid)
    if newest is None or newest.index <= own.index or not newest.state:
        return None, ""
    return revived_in(backup.with_name(newest.name) / STATE), newest.name


def _at_the_end(
    asked: TierRestore, made: Rebuilt, into: Path, now_ms: int, on_stage: Callable[[str], None]
) -> Revived | None:
    """Returns the users at the end of the log in the tier. Returns None if the restore itself ends there, or if the end
    cannot be read. `made` is the backup that the restore reads."""
    if asked.target == RestoreTarget():
        return None
    on_stage("reading the users at the end of the log")
    try:
        last = rebuild(asked._replace(target=RestoreTarget()), into.with_name(into.name + LATEST), now_ms, on_stage)
    except LocalError:  # without it, only the comparison of users is left out
        return None
    try:
        is_later = last.manifest.index > made.manifest.index and bool(last.manifest.state)
        return revived_in(last.path / STATE) if is_later else None
    finally:
        files.remove_tree(last.path)


def users_from(source: str, found: ChosenBackup, into: Path, on_stage: Callable[[str], None]) -> tuple[Revived, str]:
    """Returns (users, name) of the backup DIR/NAME or URL/NAME, for `restore`. `found` is the backup to restore. Raises
    LocalError if its users cannot replace those of `found`."""
    with local_copy(source, into.absolute(), USERS, on_stage) as path:
        on_stage(f"reading the users of {source}")
        theirs, ours = read_backup(path), manifests.load(found.path)
        known = {ours.cluster_uuid, *(cluster for cluster, _ in ours.origin)}
        why = ""
        if theirs.cluster_uuid not in known:
            why = f"it is of cluster {theirs.cluster_uuid}; secrets of users can be read in their own cluster only"
        elif theirs.index < ours.index:
            why = f"it ends at index {theirs.index}, below {ours.index}: ids of users are given once, in order"
        elif not theirs.state:
            why = "it has no rows"
        if why:
            raise LocalError(
                f"{theirs.name} has no users that can be taken",
                why,
                "--acl-from takes a later backup of the same cluster: raftmq backup list DIR",
                ExitCode.REFUSED,
            )
        return revived_in(path / STATE), theirs.name


@contextmanager
def _to_begin_with(backup: str | None, into: Path, on_stage: Callable[[str], None]) -> Iterator[Path | None]:
    if backup is None:
        yield None
        return
    with local_copy(backup, into, BEGUN, on_stage) as path:
        on_stage("reading the backup")
        read_backup(path)
        yield path


@contextmanager
def local_copy(source: str, into: Path, suffix: str, on_stage: Callable[[str], None]) -> Iterator[Path]:
    """Provides the backup DIR/NAME or URL/NAME as a directory for the duration of the context. A backup at a URL is
    fetched into a folder beside `into`, whose name ends in `suffix`, and removed afterwards. Raises LocalError."""
    if not is_url(source):
        yield Path(source).absolute()
        return
    folder = into.with_name(into.name + suffix)
    on_stage("looking for the backup")
    backup = fetch_backup(source, folder, on_stage)
    try:
        yield backup
    finally:
        files.remove_tree(folder)


PARTIAL = ".partial"


class Restored(NamedTuple):
    """The cluster that a restore has made."""

    cluster_uuid: UUID
    manifest: Manifest
    nodes: list[NodeRecord]
    revived: Revived = Revived()
    further: Mapping[int, Manifest] = MappingProxyType({})
    """Number of each further group of brokers -> the manifest of its backup."""


def restore(
    backup: Path,
    into: Path,
    *,
    count: int = 3,
    base_port: int | None = None,
    now_ms: int,
    users: Revived | None = None,
    further: Mapping[int, Path] = MappingProxyType({}),
    is_free: Callable[[int], bool] = lambda port: True,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Restored:
    """Makes a local cluster in the new or empty folder `into`, with `count` nodes in each group, ready for `raftmq up`.
    Raises LocalError.

    `now_ms` is the wall clock. The MEMBERSHIP entries get this time, or the log's if that is later. `users` replace the
    users in the backup; None keeps those. `further`: number of each further group -> its backup. Its nodes get ports
    for which `is_free` returns True.
    """
    partial = check_unused(str(backup), into)
    backups = {FIRST_GROUP: backup, **further}
    nodes = plan_all(partial, backups, count, base_port, is_free)
    on_stage("reading the backup")
    manifests_of = {group: read_backup(each) for group, each in backups.items()}
    manifest = manifests_of[FIRST_GROUP]
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        _check_space(partial, sum(each.bytes_total for each in manifests_of.values()), count)
        fresh, made = uuid.uuid4(), []
        names = _names_in(backup / STATE) if manifest.state else {}
        for group, each in backups.items():
            own_nodes = [node for node in nodes if node.group == group]
            own_manifest = manifests_of[group]
            if group in names:  # a backup from a tier lacks the name
                own_manifest = replace(own_manifest, broker_name=names[group])
            made.append(_Group(each, own_manifest, own_nodes, fresh, now_ms, users))
        for own in made:
            own.write_configs(made[0].nodes)
            for node in own.nodes:
                on_stage(f"making node {node.name}")
                own.write_node(node)
        made[0].write_secret(made[1:])
        files.sync_tree(partial)
        partial.rename(into)
        files.sync_file(into.parent)
    except (OSError, EOFError, RaftLogError) as error:
        raise _failed(error, backup, into, files.remove_tree(partial)) from error
    except BaseException:
        files.remove_tree(partial)
        raise
    others = {group: each for group, each in manifests_of.items() if group != FIRST_GROUP}
    there = [replace(node, log=str(into / Path(node.log).relative_to(partial))) for node in nodes]
    return Restored(made[0].cluster_uuid, manifest, there, made[0].revived, others)


def _names_in(state: Path) -> dict[int, str]:
    """Returns number -> broker name of the cluster's groups, from the first group's state; {} if there is only one
    group. Raises KVError."""
    with CheckpointReader(state) as reader:
        return {number: group.name for number, group in read_groups(reader).items()}


def read_backup(backup: Path) -> Manifest:
    """Verifies every byte of a backup, and returns its manifest. Raises LocalError if the backup is damaged."""
    verified = verify(backup)
    if verified.problems:
        raise LocalError(
            f"{backup} is damaged",
            "; ".join(verified.problems[:3]),
            f"use another one: raftmq backup verify {backup.parent}",
            ExitCode.REFUSED,
        )
    return verified.manifest


def check_unused(source: str, into: Path) -> Path:
    """Returns the folder beside `into` in which a restore works. Raises LocalError if this folder exists, or if `into`
    is not empty. `source` is the backup or tier, for the error message."""
    partial = into.with_name(into.name + PARTIAL)
    held = sorted(path.name for path in into.iterdir()) if into.is_dir() else []
    if held or (into.exists() and not into.is_dir()):
        raise LocalError(
            f"{into} is not empty",
            f"it holds {', '.join(held[:3])}" if held else "it is a file",
            f"raftmq restore --from {source} --into {into}.restored    (a restore never takes over what is there)",
            ExitCode.REFUSED,
        )
    if partial.exists():
        raise LocalError(
            f"{partial} is in the way",
            "a restore works there until it is complete, and one was interrupted or is running now",
            f"rm -r {partial}    (if none is running)",
            ExitCode.REFUSED,
        )
    return partial


def _check_space(partial: Path, bytes_total: int, count: int) -> None:
    needed = count * (bytes_total + (1 << 20))
    if files.free_bytes(partial) < needed:
        raise OSError(errno.ENOSPC, f"{count} nodes need about {needed} bytes", str(partial))


def _failed(error: Exception, backup: Path, into: Path, left: str) -> LocalError:
    """Returns the LocalError for an error of the disk, or of a backup that changed after it was verified. The log wraps
    the errors of the disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError):
        return LocalError(
            f"the restore into {into} failed",
            f"the backup changed while it was read: {error}{left}",
            f"raftmq backup verify {backup}",
        )
    full = out_of_space(cause)
    where = f" at {cause.filename}" if cause.filename else ""
    return LocalError(
        f"the restore into {into} failed",
        f"{cause.strerror or cause}{where}; {files.free_text(into.parent)}{left}; the backup is untouched",
        f"df -h {into.parent}    (free space there; or the same command with --into on another disk)"
        if full
        else f"ls -ld {into.parent}    (owner, space, read-only?)",
    )


class _Group:
    """Makes the nodes of one group. They differ only in node id and node uuid."""

    def __init__(
        self,
        backup: Path,
        manifest: Manifest,
        nodes: list[NodeRecord],
        cluster_uuid: UUID,
        now_ms: int,
        users: Revived | None,
    ) -> None:
        """Reads the users in the backup if this is the first group. `users` replace them; None keeps them. Raises
        KVError."""
        self._users = users
        self._backup = backup
        self._manifest = manifest
        self.nodes = nodes
        self._now_ms = now_ms
        self._fs = OsFileSystem()
        self.cluster_uuid = cluster_uuid
        self._is_first = nodes[0].group == FIRST_GROUP
        self.revived = revived_in(backup / STATE) if manifest.state and self._is_first else Revived()
        """The users in the backup's state. Empty for further groups, which copy them from the first one."""
        self._voters = tuple(Voter(NodeId(node.id), uuid.uuid4()) for node in nodes)
        self._members = Membership(
            self.cluster_uuid,
            self._voters,
            (),
            memberships.RESTORE,
            f"restored from backup {manifest.name} of cluster {manifest.cluster_uuid}, index {manifest.index}",
        )

    def write_configs(self, first: Sequence[NodeRecord]) -> None:
        """Writes raftmq.toml of each node. Brokers keep their names, because clients know a broker by its name. `first`
        are the nodes of the first group, whose files must exist before those of another group are written."""
        if not self._is_first:
            facts = GroupFacts(str(self.cluster_uuid), self._manifest.broker_name, first)
            write_group_configs(self.nodes, first[0].config_path, facts)
            return
        write_configs(self.nodes)
        for node in self.nodes:
            config = load(node.config_path)
            names = replace(config.cluster, name=self._manifest.cluster_name, broker_name=self._manifest.broker_name)
            if names != config.cluster:
                named = replace(config, cluster=names, node=replace(config.node, data_dir="data"))
                node.config_path.write_text(dump(named), encoding="utf-8")

    def write_secret(self, others: Iterable[_Group]) -> None:
        """Gives all nodes of the new cluster a new secret, so that the old cluster's secret is of no use in it.
        `others` are the further groups."""
        configs = [load(node.config_path) for node in self.nodes]
        keys = keys_of_new(configs)
        configs += [load(node.config_path) for group in others for node in group.nodes]
        for config in configs:
            give(config, keys, str(self.cluster_uuid))

    def write_node(self, node: NodeRecord) -> None:
        """Writes the data directory of one node. IDENTITY is written last: without it, the directory does not count as
        a node's. Raises OSError."""
        manifest, data = self._manifest, Path(load(node.config_path).node.data_dir)
        (data / layout.LOG).mkdir(parents=True)
        (data / layout.STATE).mkdir()
        for file in manifest.state:
            self._copy_state(file, data)
        for segment in manifest.segments:
            self._copy_segment(segment, data)
        self._begin_log(manifest.segments[0], data)
        hard_state = HardStateStore.create(self._fs, data / layout.HARD_STATE, manifest.group_id)
        hard_state.save(HardState(manifest.term + 1, NOBODY, manifest.index))
        hard_state.close()
        self._append(data)
        origin = tuple(Ancestor(UUID(cluster), index) for cluster, index in manifest.origin)
        identity = Identity(
            self.cluster_uuid,
            manifest.group_id,
            NodeId(node.id),
            dict(self._voters)[NodeId(node.id)],
            self._now_ms,
            (*origin, Ancestor(UUID(manifest.cluster_uuid), manifest.index)),
        )
        identities.save(self._fs, data, identity)

    def _copy_state(self, record: FileRecord, data: Path) -> None:
        name = Path(record.path).name
        source = self._backup / STATE / name
        if files.copy(source, data / layout.STATE / name, record.size) != record.crc32c:
            raise OSError(errno.EIO, "the backup changed while it was read", str(source))

    def _copy_segment(self, record: SegmentRecord, data: Path) -> None:
        """Copies the frames of a segment unchanged, after a new first page with sync marks for this disk. Raises
        OSError."""
        name = layout.segment_name(record.base_position)
        source, target = self._backup / LOG / name, data / layout.LOG / name
        _, header = read_header(source, self._manifest.group_id)
        page = bytearray(encode_header(header.previous, header.group_id))
        end = LogTail(0, record.last_index, record.end_position, record.last_header_crc, record.base_position, 0)
        term = self._term_of_last(source, record)
        for seq in (2, 3):
            mark = encode_mark(mark_of(end._replace(term=term), seq))
            page[MARK_OFFSETS[seq % 2] : MARK_OFFSETS[seq % 2] + len(mark)] = mark
        if files.copy_behind(bytes(page), source, target, record.end_position - record.base_position) != record.crc32c:
            raise OSError(errno.EIO, "the backup changed while it was read", str(source))

    def _begin_log(self, first: SegmentRecord, data: Path) -> None:
        """If the backup's log does not begin with GENESIS, its entry at index 0, writes the two files that a node needs
        instead: a copy of that entry, and the record of where the log begins."""
        genesis = genesis_of(self._manifest)
        if first.base_position > 0 and genesis is not None:  # otherwise `verify` has found a problem
            group_id, name = self._manifest.group_id, layout.segment_name(first.base_position)
            _, header = read_header(self._backup / LOG / name, group_id)
            write_file(self._fs, data / layout.GENESIS, genesis.header + genesis.payload)
            log_first.save(self._fs, data / layout.LOG, header.previous, group_id)

    def _term_of_last(self, source: Path, record: SegmentRecord) -> int:
        following = [each for each in self._manifest.segments if each.base_position == record.end_position]
        if not following:
            return self._manifest.term
        _, header = read_header(source.with_name(layout.segment_name(record.end_position)), self._manifest.group_id)
        return header.previous.term

    def _append(self, data: Path) -> None:
        """Appends the MEMBERSHIP entry with the new members, and the entries that remove tokens and replace users."""
        log = SegmentedLog.open(self._fs, data, group_id=self._manifest.group_id)
        entries = [(EntryType.MEMBERSHIP, memberships.encode(self._members))]
        changes = self.revived.changes(self._users, self._now_ms) if self._is_first else []
        entries += [(EntryType.COMMAND, pack(commands)) for commands in changes]
        for entry_type, payload in entries:
            entry = make_entry(
                log.tail,
                term=self._manifest.term + 1,
                entry_type=entry_type,
                payload=payload,
                timestamp_ms=self._now_ms,
                group_id=self._manifest.group_id,
                segment_size=log.segment_size,
            )
            log.append([entry])
        log.close(clean=True)
