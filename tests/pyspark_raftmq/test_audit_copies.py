"""Copies of one log are alike; every damaged or different part of one is named. No Spark is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyspark_raftmq.jobs.audit import AuditReport, Finding, compare, plan, read_digests, read_segments
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftmq.arrow.log_copy import CopySource
from raftmq.copies import chunk_checksums
from tests.support.left_copies import Left

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def run(*sources: CopySource) -> AuditReport:
    """Compares copies as Spark does it, in this process."""
    read = list(read_segments(sources, plan(sources)))
    return compare(sources, read, dict(read_digests(enumerate(sources))))


@pytest.fixture(scope="module")
def alike(left: Left, tmp_path_factory: pytest.TempPathFactory) -> list[CopySource]:
    """A backup twice, and the tier."""
    again = tmp_path_factory.mktemp("again") / "backup"
    shutil.copytree(left.backup.path, again)
    return [left.backup, CopySource("files", str(again)), left.tier]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.chmod(0o600)
    path.write_bytes(data)


def test_nothing_is_found_where_all_is_well(alike: list[CopySource]) -> None:
    found = run(*alike)
    assert (found.copies, found.findings) == (3, [])
    assert (found.segments, found.alone) == (4, 0), "the tier lacks the segment that is not sealed"


def test_a_flipped_bit_is_named_by_copy_chunk_and_entry(
    left: Left, alike: list[CopySource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_checksums, "CHUNK_BYTES", 4096)
    shutil.copytree(left.backup.path, tmp_path / "copy")
    bad = CopySource("files", str(tmp_path / "copy"))
    position = left.tables["left-other"]["position"][1].as_py()
    segment = min((tmp_path / "copy" / "log").iterdir())
    flip(segment, LOCAL_HEADER_SIZE + position + 10_000)
    (chunk, damage) = sorted(run(*alike, bad).findings, key=lambda each: -each.position)
    assert chunk.copy == damage.copy == bad.path
    assert chunk.position == (position + 10_000) // 4096 * 4096
    assert "differ from the other copies" in chunk.what
    assert f"{segment.name} is damaged at position" in damage.what


def test_rows_that_differ_and_files_that_are_gone_are_named(
    left: Left, alike: list[CopySource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(left.backup.path, tmp_path / "copy")
    bad = CopySource("files", str(tmp_path / "copy"))
    sources = [*alike, bad]
    digests = dict(read_digests(enumerate(sources)))
    told = digests[3]
    assert not isinstance(told, str)
    index, rows = told
    digests[3] = (index, {**rows, "cq": rows["cq"] ^ 1})
    tasks = plan(sources)
    min((tmp_path / "copy" / "log").iterdir()).unlink()
    (gone_file, differs) = compare(sources, list(read_segments(sources, tasks)), digests).findings[::-1]
    assert differs == Finding(bad.path, -1, f"the rows of family cq at entry {index} differ from the other copies")
    assert (gone_file.copy, gone_file.position) == (bad.path, 0)
    assert "cannot be read" in gone_file.what


def test_two_copies_that_differ_are_both_named(left: Left, tmp_path: Path) -> None:
    shutil.copytree(left.backup.path, tmp_path / "copy")
    bad = CopySource("files", str(tmp_path / "copy"))
    flip(min((tmp_path / "copy" / "log").iterdir()), 50_000)
    found = run(left.backup, bad).findings
    assert {each.copy for each in found if "differ from" in each.what} == {left.backup.path, bad.path}
