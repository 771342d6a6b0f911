"""fsck finds what is wrong, changes nothing, and says what mends it."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.state import suspect_state
from cluster.state.fsck import Fsck
from raftlog.storage.verify.verify_directory import Severity
from raftmq.cli import run as raftmq

Place = Any


def content(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): f"{hashlib.sha1(file.read_bytes()).hexdigest()} {file.stat().st_mtime_ns}"
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def damaged_kinds(place: Place, *, deep: bool = False) -> set[str]:
    report = Fsck(place.path, deep=deep).run()
    return {one.finding.kind for one in report.judged if one.finding.severity is not Severity.NOTE}


@pytest.mark.parametrize("clean", [True, False])
def test_a_sound_directory_is_found_sound_and_left_alone(place: Place, clean: bool) -> None:
    place.run(40, checkpoint=True)
    place.run(20, apply=12, clean=clean)
    before = content(place.path)
    report = Fsck(place.path, deep=False).run()
    assert report.sound, report.judged
    assert "8 entries to apply" in report.start or "0 entries" in report.start
    assert content(place.path) == before
    storage = place.open()
    storage.close(clean=True)


def test_a_start_after_fsck_is_the_start_it_told(place: Place) -> None:
    place.run(30, checkpoint=True)
    (place.path / "state" / "CURRENT").unlink()
    report = Fsck(place.path).run()
    assert not report.sound
    assert "from checkpoint" in report.start
    (cure,) = {one.cure for one in report.judged}
    storage = place.open()
    status = storage.recovery.status(storage.checkpointer.run)
    assert status.state_checkpoint in cure
    storage.close(clean=True)
    assert Fsck(place.path).run().sound


def test_every_part_of_the_state_is_looked_at(place: Place) -> None:
    place.run(40, checkpoint=True)
    place.run(20, kill=True)
    image = place.path.with_name("image")
    shutil.copytree(place.path, image)
    for pattern, kind in (
        ("state/*.sst", "table"),
        ("state/*.log", "state WAL"),
        ("state/MANIFEST-*", "state manifest"),
        ("state/CURRENT", "state"),
    ):
        place.flip(pattern, 0.4)
        assert kind in damaged_kinds(place), pattern
        shutil.rmtree(place.path)
        shutil.copytree(image, place.path)
    suspect_state.mark_suspect(place.fs, place.path, "a reason", 1)
    assert damaged_kinds(place) == {"state"}


def test_wrong_rows_are_left_to_the_peers(place: Place) -> None:
    place.run(20, checkpoint=True)
    place.run(20, checkpoint=True)
    newer, older = place.checkpoints().names()
    suspect_state.mark_suspect(place.fs, place.path, "its rows (cq) differ", 1, 30)
    report = Fsck(place.path).run()
    assert report.start.endswith(f"20 entries to apply; without a peer: from checkpoint {older}")
    assert report.judged[0].cure == "start the node while its peers run: it takes a checkpoint of one of them"
    suspect_state.peers_were_asked(place.fs, place.path, newer, "")
    assert Fsck(place.path).run().start.endswith(f"0 entries to apply; without a peer: from checkpoint {newer}")


def test_damaged_checkpoints_and_lists_are_notes(place: Place) -> None:
    place.run(40, checkpoint=True)
    place.flip("checkpoints/*/CHECKPOINT", 30)
    place.flip("state/TABLES", 30)
    report = Fsck(place.path).run()
    assert report.sound
    assert {one.finding.kind for one in report.judged} == {"checkpoint", "table list"}


def test_lost_rows_are_found_by_what_run_knows(place: Place) -> None:
    place.run(20, clean=False)
    shutil.copytree(place.path / "state", place.path.with_name("before"))
    place.run(20, clean=False)
    shutil.rmtree(place.path / "state")
    shutil.copytree(place.path.with_name("before"), place.path / "state")
    report = Fsck(place.path).run()
    assert not report.sound
    assert any("rows were lost" in one.finding.text for one in report.judged)
    assert report.judged[0].cure == "start the node: it replays these rows from its log"


def test_deep_compares_messages_with_rows(place: Place) -> None:
    place.run(10)
    assert damaged_kinds(place) == set()
    assert damaged_kinds(place, deep=True) == {"message"}, "the rows of this test point at no messages"


def test_the_command(place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place.run(30, checkpoint=True)
    assert raftmq(["fsck", str(place.path)]) == 0
    assert "sound" in capsys.readouterr().out
    assert raftmq(["fsck", str(tmp_path / "none")]) == 2
    assert f"there is no directory {tmp_path / 'none'}\n" in capsys.readouterr().err
    storage = place.open()
    assert raftmq(["fsck", str(place.path)]) == 5
    assert "in use by process" in capsys.readouterr().err
    storage.close(clean=True)
    place.flip("state/*.sst", 0.4)
    assert raftmq(["fsck", "--json", str(place.path)]) == 1
    (told,) = json.loads(capsys.readouterr().out)["directories"]
    assert told["sound"] is False
    assert told["findings"][0]["cure"]
    assert raftmq(["fsck", str(place.path)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


# --- flips -----------------------------------------------------------------------------------------------------------


def flips(files: list[Path], rng: random.Random, count: int) -> Iterator[tuple[Path, int, int]]:
    """(file, offset, bit), by size."""
    sizes = [file.stat().st_size for file in files]
    for file in rng.choices(files, sizes, k=count):
        yield file, rng.randrange(file.stat().st_size), 1 << rng.randrange(8)


def undetected(path: Path, file: Path, offset: int, bit: int) -> str:
    """ "" if fsck finds the flip, or lists the byte as irrelevant."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ bit]))
    try:
        check = Fsck(path)
        if list(check.state_findings()) if "state" in file.parts else check.run().judged:
            return ""
        if any(one.path == file and one.offset <= offset < one.offset + one.size for one in check.irrelevant()):
            return ""
        return f"{file.name} byte {offset} bit {bit}"
    finally:
        with file.open("r+b") as opened:
            opened.seek(offset)
            opened.write(bytes([byte]))


def flip_campaign(place: Place, count: int, seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201
    state = place.path / "state"
    assert Fsck(place.path).run().judged == []
    for pattern in ("*.sst", "*.log", "MANIFEST-*"):
        files = [file for file in state.glob(pattern) if file.stat().st_size]
        assert files, pattern
        missed = [undetected(place.path, *flip) for flip in flips(files, rng, count)]
        assert [one for one in missed if one] == []
    rest = [
        file for file in place.path.rglob("*") if file.is_file() and file.stat().st_size and "log" not in file.parts
    ]
    missed = [undetected(place.path, *flip) for flip in flips(rest, rng, count)]
    assert [one for one in missed if one] == []


def test_a_flipped_bit_in_the_state_is_found(place: Place) -> None:
    place.run(40)
    place.run(20, kill=True)
    flip_campaign(place, 4, random.SystemRandom().randrange(1 << 30))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_flipped_bits_in_sixteen_mebibytes_are_found(place: Place) -> None:
    for _ in range(8):
        place.run(2800, clean=False)
    place.run(400, kill=True)
    assert sum(file.stat().st_size for file in place.path.rglob("*") if file.is_file()) >= 16 << 20
    flip_campaign(place, 200, random.SystemRandom().randrange(1 << 30))


@pytest.mark.parametrize("command", [["fsck"], ["rebuild", "--plan"]])
def test_a_directory_of_somebody_else_is_not_to_be_moved(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("notes.txt", "LOCK"):
        (tmp_path / name).touch()
    for _ in range(2):
        assert raftmq([*command, str(tmp_path)]) == (2 if command == ["fsck"] else 5)
        what, why, fix = capsys.readouterr().err.splitlines()
        assert (what, why) == (f"{tmp_path} is not a data directory", "because: nothing in it is a node's")
        assert fix.startswith("type:    raftmq fsck .raftmq/n1/data    (")
    (tmp_path / "n2" / "data").mkdir(parents=True)
    (tmp_path / "n2" / "data" / "IDENTITY").touch()
    raftmq([*command, str(tmp_path)])
    assert f"type:    raftmq fsck {tmp_path / 'n2' / 'data'} " in capsys.readouterr().err
