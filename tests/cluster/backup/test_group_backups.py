"""The backups of further groups beside the first one's: which belong together, and which do not fit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.backup import manifest as manifests
from cluster.backup.group_backups import Truth, beside, check_together, further_sources, places_in, truth_in
from cluster.backup.manifest import MANIFEST, STATE, Manifest
from cluster.backup.remote import BACKUPS
from cluster.backup.restore import ChosenBackup, RestoreSource
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row


def put(place: Path, like: Path, **facts: Any) -> str:
    """Puts a copy of a backup with other facts into a folder; its name."""
    known = manifests.load(like)
    made = replace(known, name=f"b{facts['made_ms']}", **facts)
    (place / made.name).mkdir(parents=True)
    (place / made.name / MANIFEST).write_bytes(manifests.encode(made))
    return made.name


def first_of(backup: Path) -> Manifest:
    return replace(manifests.load(backup), made_ms=1_000)


def test_the_newest_that_was_begun_no_later_belongs_to_the_first_groups(backup: Path) -> None:
    place = backup.parent / "g02"
    for made_ms in (100, 900, 1_001):
        put(place, backup, made_ms=made_ms, group_id=2)
    put(place, backup, made_ms=950, group_id=3)
    put(place, backup, made_ms=960, group_id=2, cluster_uuid="another")
    assert beside(str(backup), 2, first_of(backup)) == f"{place}/b900"
    assert places_in(str(backup.parent)) == [(2, str(place))]


def test_a_group_without_a_backup_ends_the_restore(backup: Path) -> None:
    for group in (2, 3):
        with pytest.raises(LocalError, match=f"there is no backup of group {group}") as caught:
            beside(str(backup), group, first_of(backup))
        assert caught.value.exit_code is ExitCode.REFUSED
    put(backup.parent / "g02", backup, made_ms=1_001, group_id=2)
    with pytest.raises(LocalError, match="there is no backup of group 2"):
        beside(str(backup), 2, first_of(backup))


def test_all_groups_of_a_store_are_found_also_behind_one_that_has_retired(tmp_path: Path) -> None:
    for group in ("g03", "g64", "g65", "gx", "g1"):
        folder = tmp_path / group / BACKUPS
        folder.mkdir(parents=True)
        (folder / "b.json").touch()
    (tmp_path / "g02" / BACKUPS).mkdir(parents=True)
    url = f"file://{tmp_path}"
    assert places_in(url) == [(3, f"{url}/g03"), (64, f"{url}/g64")]


@each_row(("copied", "fits"), [(0, True), (3, False), (4, True), (9, True), (10, False)])
def test_a_group_that_could_not_go_on_copying_is_refused(copied: int, fits: bool) -> None:
    first, others = Truth((2,), forgotten=4, version=9), {2: Truth(copied=copied)}
    if fits:
        check_together(first, others)
        return
    with pytest.raises(LocalError, match="group 2 does not fit to the first group"):
        check_together(first, others)


def test_a_backup_of_a_cluster_with_one_group_has_no_others(backup: Path, tmp_path: Path) -> None:
    assert truth_in(backup / STATE) == Truth()
    with further_sources(
        RestoreSource(str(backup)), ChosenBackup(backup), tmp_path / "new", 0, lambda stage: None
    ) as found:
        assert found == {}


def test_a_backup_of_a_further_group_is_not_restored_alone(backup: Path, tmp_path: Path) -> None:
    alone = backup.parent / put(backup.parent, backup, made_ms=5, group_id=2)
    shutil.copytree(backup / STATE, alone / STATE)
    with (
        pytest.raises(LocalError, match="is a backup of group 2 alone"),
        further_sources(RestoreSource(str(alone)), ChosenBackup(alone), tmp_path / "new", 0, lambda stage: None),
    ):
        pass
