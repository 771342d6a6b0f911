"""fsck of a log that was trimmed, and of a directory in which a fetched log waits to take its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.state.fsck import Fsck
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.log_build import LogBuild
from raftlog.storage.verify.verify_directory import Severity

Place = Any


def kinds(place: Place) -> list[tuple[str, Severity]]:
    return [(one.finding.kind, one.finding.severity) for one in Fsck(place.path).run().judged]


def trim(place: Place, count: int) -> None:
    """Begins the log `count` files later, below the newest checkpoint."""
    storage = place.open()
    log = storage.directory.log
    newest = place.checkpoints().all()[-1].manifest.mark.end_position
    base = log.state.segments[count].base
    assert base < newest
    assert log.remove_files(log.trim(base)) == count
    storage.close(clean=True)


@pytest.fixture
def trimmed(place: Place) -> Place:
    for _ in range(4):
        place.run(500, checkpoint=True)
    trim(place, 2)
    return place


def test_a_trimmed_log_is_sound(trimmed: Place) -> None:
    assert kinds(trimmed) == []
    storage = trimmed.open()
    assert storage.directory.log.first_index > 0
    storage.close(clean=True)
    assert kinds(trimmed) == []


def test_what_a_trim_left_is_a_note_and_what_is_lost_is_not(trimmed: Place) -> None:
    log = trimmed.path / "log"
    (log / f"{1:020d}.seg").write_bytes(b"x" * 5000)
    assert kinds(trimmed) == [("segment file", Severity.NOTE)]
    first = min(path for path in log.glob("*.seg") if int(path.stem) > 1)
    first.rename(trimmed.path / "first")
    assert ("segment file", Severity.REPAIRABLE) in kinds(trimmed)
    (trimmed.path / "first").rename(first)
    (trimmed.path / "GENESIS").unlink()
    report = Fsck(trimmed.path).run()
    assert "put GENESIS of any other node" in " ".join(one.finding.text for one in report.judged)
    assert report.start.startswith("refuse")


def test_a_log_that_waits_to_be_installed(trimmed: Place, new_place: Any, tmp_path: Path) -> None:
    """The node was away when its peers trimmed: its own log ends below where theirs begins."""
    away = tmp_path / "away"
    shutil.copytree(trimmed.path, away)
    peer = trimmed.open()
    log = peer.directory.log
    trimmed.write(peer, 1200)
    peer.checkpointer.checkpoint()
    (name,) = trimmed.checkpoints().names()[:1]
    mark = next(one.manifest.mark for one in trimmed.checkpoints().all() if one.path.name == name)
    log.trim(log.segment_at(mark.end_position - 1).previous.end_position)
    assert log.first_index > 2001, "above the end of the other"
    build = LogBuild.begin(OsFileSystem(), away, log.genesis.group_id, log.previous)
    build.append_raw(log.read_at(log.first_position, mark.end_position - log.first_position))
    build.commit(name, mark.index, mark.header_crc)
    shutil.copytree(trimmed.path / "checkpoints" / name, away / "checkpoints" / name)
    peer.close(clean=True)

    node = trimmed
    node.path = away
    before = sorted(str(path) for path in away.rglob("*"))
    report = Fsck(away).run()
    assert [(one.finding.kind, one.finding.severity) for one in report.judged] == [("install", Severity.NOTE)]
    assert "ends before the oldest entry" in report.start
    assert f"from checkpoint {name}" in report.start
    assert sorted(str(path) for path in away.rglob("*")) == before
    storage = node.open()
    installed = storage.directory.installed
    assert installed is not None
    assert (installed.done, installed.checkpoint) == (True, name)
    assert storage.state.applied.index == mark.index
    storage.close(clean=True)
    assert kinds(node) == []
