"""The backups of a cluster's further groups: each group has its own, next to those of the first group.

::

    TARGET/<name>/          a backup of the first group
    TARGET/g02/<name>/      one of group 2; of a store that is URL/g02, with all that `cluster.backup.remote` draws

Each shows one moment of its group's log; there is no moment common to all groups. The first group's backup belongs
together with the newest one of each other group that was begun no later: the first group is backed up last, so that it
knows every version of the truth that another one has copied (docs/adr/0108-groups-share-one-truth-and-copy-it.md).
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
    """The part of a state that says which groups a cluster has, and how much this one has of what they share (topics,
    users): the first group writes that into a journal, and the others copy it, version by version."""

    groups: tuple[int, ...] = ()
    """The numbers of the groups but the first that have not retired, ascending; none if the cluster has one group."""
    forgotten: int = 0
    """The version of the newest end that the first group's journal has forgotten; 0 elsewhere."""
    version: int = 0
    """The newest version of the truth, in the first group; 0 elsewhere."""
    copied: int = 0
    """The version that another group has copied; 0 in the first one."""


def truth_in(state: Path) -> Truth:
    """Reads the state in that folder and changes nothing there. Raises KVError."""
    with CheckpointReader(state) as reader:
        known = read_groups(reader)
        journal, copied = reader.get(META, meta_keys.JOURNAL_KEY), reader.get(META, meta_keys.COPIED_KEY)
    version, forgotten, _ = (0, 0, None) if journal is None else msgpack.unpackb(journal, use_list=False)
    others = tuple(sorted(living_groups(known) - {FIRST_GROUP}))
    return Truth(others, forgotten, version, 0 if copied is None else keys.U64.unpack(copied)[0])


def places_in(target: str) -> list[tuple[int, str]]:
    """Returns (group, directory or URL) of the further groups' backups next to those in `target`, in the order of the
    groups. Raises LocalError if the target is a store that does not answer."""
    if is_url(target):
        return [(group, of_group(target, group)) for group in groups_at(target)]
    folders = sorted(Path(target).glob("g[0-9][0-9]"))
    return [(int(folder.name[1:]), str(folder)) for folder in folders if folder.is_dir()]


def beside(source: str, group: int, first: Manifest) -> str:
    """Returns the backup of a further group that belongs to the one of the first group, DIR/NAME or URL/NAME. Raises
    LocalError if there is none."""
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
    """Raises LocalError if a group, once restored, could not continue its copy of the first group's truth."""
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
    """Provides the backups of all further groups that the first group knows as of its moment, and removes at the end
    what was fetched. `wanted`: the source of the first group, `first` what was found there. Raises LocalError."""
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
    """Returns the manifest of the first group's backup as it was made, not as it was brought forward by a tier."""
    path = Path(wanted.backup or "")
    return manifests.load(path) if wanted.tier is not None and (path / manifests.MANIFEST).exists() else manifest
