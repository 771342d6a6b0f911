"""Finds and counts the backups in a target directory, and removes old ones."""

from __future__ import annotations

import time
from pathlib import Path

from cluster.backup import manifest as manifests
from cluster.backup.files import remove_tree
from cluster.backup.manifest import MANIFEST, Manifest
from cluster.errors import ExitCode, LocalError

PARTIAL = ".partial"


def name_of(made_ms: int, cluster_uuid: str, node: int, index: int) -> str:
    """A backup's name: sorts by time, tells whose it is."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made_ms / 1000))
    return f"{when}-{cluster_uuid[:8]}-n{node}-i{index}"


def backups_in(target: Path) -> tuple[list[Manifest], list[str]]:
    """(Every readable backup, oldest first; a sentence for each one that is not). Raises LocalError: no directory."""
    if not target.is_dir():
        raise LocalError(
            f"there is no directory {target}",
            "backups lie in the directory that backup create was told with --to",
            "raftmq backup create --to DIR",
            ExitCode.REFUSED,
        )
    found, problems = [], []
    for path in sorted(target.iterdir()):
        if path.name.endswith(PARTIAL):
            problems.append(f"{path} was not finished; unless one is being made right now: rm -r {path}")
        elif (path / MANIFEST).exists():
            try:
                found.append(manifests.load(path))
            except LocalError as error:
                problems.append(f"{error.what}: {error.why}")
    return sorted(found, key=lambda each: (each.made_ms, each.name)), problems


def newest(target: Path, cluster_uuid: str, node: int | None = None) -> Manifest | None:
    """The newest backup of the cluster (and node) in `target`; None if there is none, or no such directory."""
    if not target.is_dir():
        return None
    found = [
        each
        for each in backups_in(target)[0]
        if each.cluster_uuid == cluster_uuid and (node is None or each.node == node) and (target / each.name).is_dir()
    ]
    return found[-1] if found else None


def thin_out(target: Path, cluster_uuid: str, keep: int) -> list[str]:
    """Removes all but the `keep` newest backups of the cluster, whichever node made them; returns the names of those
    removed."""
    mine = [each for each in backups_in(target)[0] if each.cluster_uuid == cluster_uuid]
    removed = [each.name for each in mine[: max(0, len(mine) - keep)]]
    for name in removed:
        (target / name / MANIFEST).unlink()  # first: half of a backup must not look like one
        remove_tree(target / name)
    return removed


def remove_unfinished(target: Path, cluster_uuid: str, node: int) -> list[str]:
    """Removes what earlier attempts of this node left, if any; returns their names. One node makes one at a time."""
    mark = f"-{cluster_uuid[:8]}-n{node}-i"
    left = [path for path in target.iterdir() if path.name.endswith(PARTIAL) and mark in path.name]
    for path in left:
        remove_tree(path)
    return [path.name for path in left]
