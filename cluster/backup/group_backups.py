"""Finds the backups of a cluster's further groups of brokers. Each group has its own, next to those of the first group.

::

    TARGET/<name>/          a backup of the first group
    TARGET/g02/<name>/      one of group 2; in a store, below URL/g02 as `cluster.backup.remote` describes

Each backup shows one moment of its group's log; the groups have no common moment. The first group is backed up last.
Its backup then has every version of the shared rows (topics, users, settings) that another group has copied. It belongs
together with the newest backup of each other group that was begun no later
(docs/adr/0108-groups-share-one-truth-and-copy-it.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgpack

from cluster.backup import files
from cluster.backup import manifest as manifests
from cluster.backup.manifest import STATE, Manifest
from cluster.backup.remote import backups_at, groups_at, is_url, split
from cluster.backup.restore import ChosenBackup, RestoreSource, found_source
from cluster.config.node_files import of_group
from raftlog.types import FIRST_GROUP
from raftmq_wire.errors import ExitCode, LocalError
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.cluster_wide.broker_groups import living_groups, read_groups
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import META


class Truth(NamedTuple):
    """Data about the groups of a cluster, read from one group's state. All groups share some rows, such as topics and
    users: the truth. The first group writes its changes to a journal, in versions, and the other groups copy them in
    order."""

    groups: tuple[int, ...] = ()
    """Numbers of the further groups that have not retired, ascending; () if the cluster has only one group."""
    forgotten: int = 0
    """The newest version that the first group's journal no longer has; 0 in another group."""
    version: int = 0
    """The newest version of the truth in the first group; 0 in another group."""
    copied: int = 0
    """The version that a further group has copied last; 0 in the first group."""


def truth_in(state: Path) -> Truth:
    """Reads a Truth from the state in that folder, without changing it. Raises KVError."""
    with CheckpointReader(state) as reader:
        known = read_groups(reader)
        journal, copied = reader.get(META, meta_keys.JOURNAL_KEY), reader.get(META, meta_keys.COPIED_KEY)
    version, forgotten, _ = (0, 0, None) if journal is None else msgpack.unpackb(journal, use_list=False)
    others = tuple(sorted(living_groups(known) - {FIRST_GROUP}))
    return Truth(others, forgotten, version, 0 if copied is None else keys.U64.unpack(copied)[0])


def places_in(target: str) -> list[tuple[int, str]]:
    """Returns (group, directory or URL) of the places with further groups' backups beside those in `target`, by group.
    Raises LocalError if `target` is a store that does not answer."""
    if is_url(target):
        return [(group, of_group(target, group)) for group in groups_at(target)]
    folders = sorted(Path(target).glob("g[0-9][0-9]"))
    return [(int(folder.name[1:]), str(folder)) for folder in folders if folder.is_dir()]


def beside(source: str, group: int, first: Manifest) -> str:
    """Returns the backup of a further group, as DIR/NAME or URL/NAME, that belongs to the first group's backup
    `source`: the newest one that was begun no later. `first` is the manifest of `source`. Raises LocalError if there is
    none."""
    folder = split(source)[0] if is_url(source) else str(Path(source).absolute().parent)
    place = of_group(folder, group)
    found = backups_at(place)[0] if is_url(place) else files.backups_in(Path(place))[0] if Path(place).is_dir() else []
    mine = [
        each
        for each in found
        if (each.cluster_uuid, each.group_id) == (first.cluster_uuid, group) and each.made_ms <= first.made_ms
    ]
    if not mine:
        raise LocalError(
            f"there is no backup of group {group} that belongs to {first.name}",
            f"the cluster had group {group} then, and all its groups are restored together; {place} has none that was "
            "begun earlier",
            f"raftmq backup list {folder}    (another one; or put the folder back)",
            ExitCode.REFUSED,
        )
    return f"{place}/{mine[-1].name}"


def check_together(first: Truth, others: Mapping[int, Truth]) -> None:
    """Raises LocalError if a restored group could not continue to copy from the first group's journal, because it has a
    version that the journal does not have yet or has no longer. `others`: group -> its Truth."""
    for group, truth in others.items():
        if truth.copied and not first.forgotten <= truth.copied <= first.version:
            later = truth.copied > first.version
            raise LocalError(
                f"group {group} does not fit to the first group",
                f"it knows version {truth.copied} of what all groups share, and the first group has "
                f"{first.forgotten} to {first.version}: its moment is {'later' if later else 'too much earlier'}",
                "Restore another backup of the first group, or all groups from their tiers to an earlier time.",
                ExitCode.REFUSED,
            )


@contextmanager
def further_sources(
    wanted: RestoreSource, first: ChosenBackup, into: Path, now_ms: int, on_stage: Callable[[str], None]
) -> Iterator[dict[int, ChosenBackup]]:
    """Yields group -> its backup, for all further groups that the first group's backup knows. What was fetched is
    removed at the end. `wanted` is the source of the first group's restore, and `first` the backup found there. Raises
    LocalError."""
    manifest = manifests.load(first.path)
    if manifest.group_id != FIRST_GROUP:
        raise LocalError(
            f"{manifest.name} is a backup of group {manifest.group_id} alone",
            f"a cluster is restored with all its groups, from the backup of group {FIRST_GROUP}",
            "Restore a backup of the first group: the folders of the others lie beside its backups.",
            ExitCode.USAGE,
        )
    truth = truth_in(first.path / STATE) if manifest.state else Truth()
    if truth.groups and wanted.target.index is not None:
        raise LocalError(
            "an index is of the log of one group",
            f"the cluster has groups {', '.join(map(str, (FIRST_GROUP, *truth.groups)))}, each with a log of its own",
            "--to-time in place of --to-index",
            ExitCode.USAGE,
        )
    with ExitStack() as stack:
        found: dict[int, ChosenBackup] = {}
        for group in truth.groups:
            try:
                backup = None if wanted.backup is None else beside(wanted.backup, group, _begun_with(wanted, manifest))
                tier = None if wanted.tier is None else of_group(wanted.tier, group)
                source = RestoreSource(backup, tier, manifest.cluster_uuid, wanted.target, wanted.rest)
                own = into.with_name(f"{into.name}.g{group:02}")
                found[group] = stack.enter_context(found_source(source, own, now_ms, on_stage, is_first=False))
            except LocalError as error:
                raise error.of_group(group) from None
        check_together(truth, {group: truth_in(each.path / STATE) for group, each in found.items()})
        yield found


def _begun_with(wanted: RestoreSource, manifest: Manifest) -> Manifest:
    """Returns the manifest of the first group's backup as a node made it. If the tier's log was applied to it, that is
    the manifest of the backup to begin with."""
    path = Path(wanted.backup or "")
    return manifests.load(path) if wanted.tier is not None and (path / manifests.MANIFEST).exists() else manifest
