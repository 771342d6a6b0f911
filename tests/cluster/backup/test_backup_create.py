"""Backups of a stopped node's files: what is in them, what is linked, what is noticed, what a bad target leaves."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.backup import files, manifest
from cluster.backup.create import create
from cluster.backup.segments import walk
from cluster.backup.verify import verify
from raftlog.errors import CorruptLogError
from raftlog.frame import make_entry
from raftlog.types import EntryType
from raftmq_wire.errors import LocalError
from statemachine.rows.kv import OFFSETS, Batch
from statemachine.rows.rocksdb_store import RocksKV

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def problems(backup: Path) -> list[str]:
    """Returns the problems that reading the backup finds; a damaged manifest is a problem too."""
    try:
        return verify(backup).problems
    except LocalError as error:
        return [error.what]


def test_a_backup_holds_the_log_up_to_the_cut_and_the_rows_of_the_cut(stopped: Any, tmp_path: Path) -> None:
    made = create(stopped.request(tmp_path / "to"))
    told, expected = made.manifest, stopped.expected
    assert (told.index, told.term, told.position) == (
        expected["last_index"],
        expected["last_term"],
        expected["end_position"],
    )
    assert {
        family: int(total, 16) for family, total in told.digest.items() if family in expected["digest"]
    } == expected["digest"]
    assert told.segments[0].base_position == 0
    assert told.segments[-1].end_position == expected["end_position"]
    assert len(told.segments) > 3
    found = verify(Path(made.path))
    assert (found.problems, found.manifest) == ([], told)
    assert [each.name for each in files.backups_in(tmp_path / "to")[0]] == [told.name]
    assert manifest.load(Path(made.path)) == told


def test_sealed_files_are_linked_and_the_last_one_is_copied(stopped: Any, tmp_path: Path) -> None:
    made = create(stopped.request(tmp_path / "to"))
    log = stopped.data / "log"
    kept = sorted((Path(made.path) / "log").iterdir())
    assert [path.samefile(log / path.name) for path in kept] == [True] * (len(kept) - 1) + [False]
    copies = create(stopped.request(tmp_path / "copies", copy_all=True))
    assert not any(path.samefile(log / path.name) for path in (Path(copies.path) / "log").iterdir())
    assert copies.manifest.bytes_new > made.manifest.bytes_new
    assert copies.manifest.segments == made.manifest.segments


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system, to which no file of a node can be linked."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert Path(folder).stat().st_dev != tmp_path.stat().st_dev
        yield Path(folder)


def test_the_next_backup_links_what_an_earlier_copy_holds(stopped: Any, elsewhere: Path) -> None:
    first = create(stopped.request(elsewhere))
    later = stopped._replace(checkpoint=stopped.grow(200))
    second = create(later.request(elsewhere, NOW_MS + 1000))
    assert first.manifest.bytes_new >= first.manifest.bytes_total
    assert second.manifest.bytes_new < second.manifest.bytes_total - 500_000
    same = [
        record.base_position for record in second.manifest.segments if record in first.manifest.segments
    ]  # all that were sealed then
    assert len(same) == len(first.manifest.segments) - 1
    for base in same:
        name = f"{base:020d}.seg"
        assert (Path(first.path) / "log" / name).samefile(Path(second.path) / "log" / name)
    assert verify(Path(first.path)).problems == verify(Path(second.path)).problems == []
    shutil.rmtree(first.path)
    assert verify(Path(second.path)).problems == []


def test_rot_of_an_earlier_backup_is_not_inherited(stopped: Any, elsewhere: Path) -> None:
    first = Path(create(stopped.request(elsewhere)).path)
    table = next((first / "state").glob("*.sst"))
    for path, at in ((sorted((first / "log").iterdir())[1], 9000), (table, table.stat().st_size // 2)):
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"\x5a\xa5", at)
    assert len(problems(first)) > 0
    second = create(stopped.request(elsewhere, NOW_MS + 1000))
    assert verify(Path(second.path)).problems == []
    assert 130_000 < second.manifest.bytes_new < second.manifest.bytes_total


def test_entries_above_the_cut_are_not_in_a_backup(stopped: Any, tmp_path: Path) -> None:
    """They need not be committed. The log goes on in the last file of the cut and in later ones."""
    before = create(stopped.request(tmp_path / "before")).manifest
    stopped.grow(300)
    made = create(stopped.request(tmp_path / "to"))
    assert (made.manifest.index, made.manifest.segments) == (before.index, before.segments)
    for record in made.manifest.segments[-1:]:
        size = (Path(made.path) / "log" / f"{record.base_position:020d}.seg").stat().st_size
        assert size == 4096 + record.end_position - record.base_position


def test_a_backup_stays_what_it_was_while_the_node_goes_on(stopped: Any, tmp_path: Path) -> None:
    made = create(stopped.request(tmp_path / "to"))
    stopped.grow(400)
    assert verify(Path(made.path)).problems == []


def test_what_was_just_made_stays_although_the_clock_of_its_node_is_behind(stopped: Any, tmp_path: Path) -> None:
    """Names and times are those of the nodes that made them, and clocks differ."""
    target = tmp_path / "to"
    ahead = [create(stopped.request(target, NOW_MS + day * DAY_MS, keep=2)).manifest.name for day in (1, 2)]
    made = create(stopped.request(target, NOW_MS, keep=2))
    assert made.removed == ahead[:1]
    assert names(target) == [made.manifest.name, ahead[1]]
    assert verify(Path(made.path)).problems == []


def test_the_oldest_go_when_there_are_more_than_keep(stopped: Any, tmp_path: Path) -> None:
    target = tmp_path / "to"
    made_names = []
    other = NOW_MS - DAY_MS
    foreign = manifest.load(Path(create(stopped.request(target, other)).path))
    foreign = replace(foreign, name="20200101T000000Z-aaaaaaaa-n1-i1", cluster_uuid="another")
    (target / foreign.name).mkdir()
    (target / foreign.name / manifest.MANIFEST).write_bytes(manifest.encode(foreign))
    for day in range(4):
        made = create(stopped.request(target, NOW_MS + day * DAY_MS, keep=2))
        made_names.append(made.manifest.name)
    assert [Path(path).name for path in made.removed] == [made_names[1]]
    assert names(target) == [foreign.name, *made_names[2:]]


def test_a_copy_under_another_name_is_not_counted_and_keeps_no_other(stopped: Any, tmp_path: Path) -> None:
    """The folder that a person put aside has the manifest of the backup that it was."""
    target = tmp_path / "to"
    first = Path(create(stopped.request(target)).path)
    first.rename(target / "before-the-upgrade")
    made = [create(stopped.request(target, NOW_MS + day * DAY_MS, keep=2)) for day in range(1, 4)]
    assert [each.removed for each in made] == [[], [], [made[0].manifest.name]]
    assert names(target) == [*(each.manifest.name for each in made[1:]), "before-the-upgrade"]


def test_a_manifest_names_no_folder_to_remove_but_its_own(stopped: Any, tmp_path: Path) -> None:
    target, victim = tmp_path / "to", tmp_path / "victim"
    made = Path(create(stopped.request(victim)).path)
    forged = replace(manifest.load(made), name=f"../victim/{made.name}")
    (target / "x").mkdir(parents=True)
    (target / "x" / manifest.MANIFEST).write_bytes(manifest.encode(forged))
    later = create(stopped.request(target, NOW_MS + DAY_MS, keep=1))
    assert (names(victim), later.removed) == ([made.name], [])
    assert problems(made) == []


def test_every_flipped_byte_of_a_small_backup_is_noticed_or_does_not_count(stopped: Any, tmp_path: Path) -> None:
    """Not what lies before and behind a segment's frames: marks and zeroes are not part of the backup."""
    made = create(stopped.request(tmp_path / "to", copy_all=True))
    root = Path(made.path)
    ends = {
        f"{each.base_position:020d}.seg": 4096 + each.end_position - each.base_position
        for each in made.manifest.segments
    }
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        size = path.stat().st_size
        for at in sorted({0, size // 2, size - 1} if path.name in ends else {size // 2} if size else set()):
            counts = path.name not in ends or at < 64 or 4096 <= at < ends[path.name]
            with path.open("r+b") as file:
                original = os.pread(file.fileno(), 1, at)
                os.pwrite(file.fileno(), bytes([original[0] ^ 0x10]), at)
                assert bool(problems(root)) is counts, (path, at)
                os.pwrite(file.fileno(), original, at)
    assert verify(root).problems == []


def test_missing_and_extra_files_are_told(stopped: Any, tmp_path: Path) -> None:
    root = Path(create(stopped.request(tmp_path / "to")).path)
    (root / "state" / "CURRENT").rename(root / "state" / "current")
    told = " ".join(verify(root).problems)
    assert "CURRENT is missing" in told
    assert "current is not in the manifest" in told


def test_a_manifest_that_tells_another_backup_is_noticed(backup: Path) -> None:
    """Whole and sealed, but not of these files."""
    told = manifest.load(backup)
    last = told.segments[-1]
    others = {
        "sum to": replace(told, digest={**told.digest, "topics": "0" * 16}),
        "ends at index": replace(told, index=told.index - 1),
        "was applied up to": replace(told, header_crc=told.header_crc ^ 1),
        "holds another log": replace(told, segments=[*told.segments[:-1], replace(last, crc32c=last.crc32c ^ 1)]),
    }
    for words, other in others.items():
        (backup / manifest.MANIFEST).write_bytes(manifest.encode(other))
        assert words in " ".join(problems(backup))


def test_a_changed_digit_of_a_manifest_is_damage(backup: Path) -> None:
    path = backup / manifest.MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"made_ms": 17', b'"made_ms": 16'))
    with pytest.raises(LocalError, match=r"(?s)is damaged\nthe checksum does not fit.*use another backup"):
        manifest.load(backup)


def test_frames_that_do_not_follow_each_other_are_no_log(stopped: Any) -> None:
    """Each of them sound, as after files of two logs were mixed."""
    first, second, third = sorted((stopped.data / "log").glob("*.seg"))[:3]
    tail, _ = walk(first, None, int(second.stem), 1)
    assert walk(second, tail, int(third.stem), 1)[0].end_position == int(third.stem)
    with pytest.raises(CorruptLogError, match="the file before ends elsewhere"):
        walk(third, tail, int(third.stem) + 64, 1)
    data = bytearray(second.read_bytes())
    lone = make_entry(
        tail._replace(header_crc=7),
        term=tail.term,
        entry_type=EntryType.NOOP,
        payload=b"",
        timestamp_ms=0,
        group_id=1,
        segment_size=64,
    )
    data[4096 : 4096 + 64] = lone.header
    second.write_bytes(data)
    with pytest.raises(CorruptLogError, match=rf"is damaged at position {second.stem.lstrip('0')}.*does not follow"):
        walk(second, tail, int(third.stem), 1)


def test_damage_of_the_node_is_not_carried_into_a_backup(stopped: Any, tmp_path: Path) -> None:
    path = sorted((stopped.data / "log").glob("*.seg"))[1]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff\xfe", 4096 + 70_000)
    with pytest.raises(LocalError, match=r"(?s)what node 1 holds is damaged.*at position.*another --node"):
        create(stopped.request(tmp_path / "to"))
    assert names(tmp_path / "to") == []


def test_rows_that_were_never_applied_are_not_backed_up(stopped: Any, tmp_path: Path) -> None:
    """Sound blocks with wrong rows: only the sums that apply keeps can tell."""
    stopped.grow(1)
    kv, batch = RocksKV(str(stopped.data / "state")), Batch()
    batch.put(OFFSETS, b"nobody\0" + bytes(8), bytes(8))
    kv.write(batch)
    kv.checkpoint(str(tmp_path / "checkpoint"))
    kv.close()
    wrong = stopped._replace(checkpoint=tmp_path / "checkpoint")
    with pytest.raises(LocalError, match="family offsets are not those that the node counted"):
        create(wrong.request(tmp_path / "to"))


def test_a_full_target_is_refused_before_anything_is_copied(stopped: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 5000)
    with pytest.raises(LocalError, match=r"(?s)is full.*5000 bytes are free, this backup needs about \d{7}.*--keep"):
        create(stopped.request(tmp_path / "to", copy_all=True))
    assert names(tmp_path / "to") == []


@pytest.mark.parametrize(
    ("number", "what", "nth"),
    [
        (errno.ENOSPC, "is full", 1),
        (errno.EDQUOT, "is full", 12),
        (errno.EIO, "vanished", 4),
        (errno.EACCES, "failed", 9),
    ],
)
def test_a_target_that_fails_in_the_middle(
    stopped: Any, tmp_path: Path, monkeypatch: Any, number: int, what: str, nth: int
) -> None:
    writing, count = files.write_all, 0

    def fails(fd: int, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise OSError(number, os.strerror(number), str(tmp_path / "to"))
        writing(fd, data)

    before = sorted(stopped.data.rglob("*"))
    monkeypatch.setattr(files, "write_all", fails)
    with pytest.raises(LocalError, match=what):
        create(stopped.request(tmp_path / "to", copy_all=True))
    assert count == nth
    assert names(tmp_path / "to") == []
    assert sorted(stopped.data.rglob("*")) == before


@pytest.mark.parametrize("copy_all", [True, False])
@pytest.mark.parametrize("stage", ["state", "log", "reading back"])
def test_a_target_that_vanishes(stopped: Any, tmp_path: Path, stage: str, copy_all: bool) -> None:
    """Also while files are linked: an error of a link does not say which side failed."""

    def vanishes(begins: str) -> None:
        if begins == stage:
            shutil.rmtree(tmp_path / "to")

    with pytest.raises(LocalError, match=r"(?s)vanished.*not affected.*check the mount"):
        create(stopped.request(tmp_path / "to", copy_all=copy_all), vanishes)


@pytest.mark.parametrize("copy_all", [True, False])
def test_a_file_of_the_node_that_vanishes(stopped: Any, tmp_path: Path, copy_all: bool) -> None:
    gone = min((stopped.data / "log").glob("*.seg"))

    def vanishes(begins: str) -> None:
        if begins == "log":
            gone.unlink()

    with pytest.raises(LocalError, match=rf"(?s)not made: {gone} went away meanwhile.*\(once more\)"):
        create(stopped.request(tmp_path / "to", copy_all=copy_all), vanishes)
    assert names(tmp_path / "to") == []


def test_a_file_of_the_node_that_cannot_be_read_is_named(stopped: Any, tmp_path: Path) -> None:
    """/proc/self/mem can be opened, and fails where nothing is mapped, as a bad block does."""
    bad = min((stopped.data / "log").glob("*.seg"))

    def turns_bad(begins: str) -> None:
        if begins == "log":
            bad.unlink()
            bad.symlink_to("/proc/self/mem")

    with pytest.raises(LocalError, match=rf"(?s)not made: {bad} cannot be read\nInput/output error.*another --node"):
        create(stopped.request(tmp_path / "to", copy_all=True), turns_bad)
    assert names(tmp_path / "to") == []


def test_a_copy_names_the_file_that_failed(tmp_path: Path) -> None:
    """As when a backup is made, and when one is restored."""
    copies: list[Callable[[Path, Path, int], int]] = [files.copy, partial(files.copy_behind, b"page")]
    for number, copy in enumerate(copies):
        with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
            copy(Path("/proc/self/mem"), tmp_path / f"copy-{number}", 10)


def test_what_an_earlier_backup_lost_is_taken_from_the_node(stopped: Any, elsewhere: Path) -> None:
    first = Path(create(stopped.request(elsewhere)).path)
    for gone in (sorted((first / "log").iterdir())[1], next((first / "state").glob("*.sst"))):
        gone.unlink()
    second = create(stopped.request(elsewhere, NOW_MS + 1000))
    assert verify(Path(second.path)).problems == []


def test_a_target_that_cannot_be_one(stopped: Any, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"(?s)cannot be a backup target.*is mounted"):
        create(stopped.request(tmp_path / "no" / "such" / "parent"))
    with pytest.raises(LocalError, match=r"(?s)cannot be a backup target.*own directory"):
        create(stopped.request(stopped.data / "backups"))


@pytest.mark.parametrize("place", ["n2", "n2/backups", "n2/data", "n2/data/log/x", "elsewhere/x"])
def test_nothing_is_written_into_the_directory_of_another_node(stopped: Any, tmp_path: Path, place: str) -> None:
    for name in ("n2/data", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "IDENTITY").touch()
    (tmp_path / "n2" / "raftmq.toml").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LocalError, match=r"(?s)cannot be a backup target.*of another node"):
        create(stopped.request(tmp_path / place))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_folder_of_the_node_itself_may_have_its_backups(stopped: Any, tmp_path: Path) -> None:
    (stopped.data.parent / "raftmq.toml").touch()
    create(stopped.request(stopped.data.parent / "backups"))


def test_what_an_earlier_attempt_left_is_removed_and_told(stopped: Any, tmp_path: Path) -> None:
    target = tmp_path / "to"
    mine = target / f"20200101T000000Z-{stopped.expected['cluster_uuid'][:8]}-n1-i5.partial"
    other = target / "20200101T000000Z-aaaaaaaa-n2-i5.partial"
    (mine / "log").mkdir(parents=True)
    other.mkdir()
    assert len(files.backups_in(target)[1]) == 2
    create(stopped.request(target))
    assert (mine.exists(), other.exists()) == (False, True)


def test_a_copy_that_is_not_read_back_as_it_was_written(stopped: Any, tmp_path: Path) -> None:
    def rots(begins: str) -> None:
        if begins == "reading back":
            (copied, *_) = (tmp_path / "to").glob("*/state/*.sst")
            with copied.open("r+b") as file:
                file.write(b"\xff")

    with pytest.raises(LocalError, match="read back"):
        create(stopped.request(tmp_path / "to", copy_all=True), rots)
    assert names(tmp_path / "to") == []
