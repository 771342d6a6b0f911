"""node.log of a node under `raftmq up`: a new file when it is full, and a bounded number of old ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.config.config import LogOutputSection
from cluster.config.local_layout import NodeRecord
from cluster.runtime.output_file import OutputFile
from raftmq.commands.nodes.logs import NOWHERE, _read_from
from raftmq.local.process import log_tail

LINES = 3_000
PROGRAM = f"""
import logging, os, sys
from pathlib import Path
from cluster.runtime import logs
from cluster.runtime.output_file import OutputFile
logs.setup("info", "text", 1, output=OutputFile(Path(sys.argv[1]), 20_000, 4))
for number in range({LINES}):
    logging.getLogger("cluster.node").info("line %d", number)
    if number % 100 == 0:
        os.write(1, b"printed by a library %d\\n" % number)
        print("printed", number, file=sys.stderr)
"""


def test_the_output_of_a_process_stays_within_its_files(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("of an earlier run\n")
    path.chmod(0o600)
    with path.open("ab") as output:
        subprocess.run([sys.executable, "-c", PROGRAM, str(path)], stdout=output, stderr=output, check=True)
    names = ["node.log.3", "node.log.2", "node.log.1", "node.log"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(names)
    assert all((tmp_path / name).stat().st_size < 20_500 for name in names)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in names)
    lines = "".join((tmp_path / name).read_text() for name in names).splitlines()
    numbers = [int(line.rsplit(" ", 1)[1]) for line in lines if ": line " in line]
    assert numbers == list(range(numbers[0], LINES)), "no line is lost where files change"
    for what in ("printed by a library", "printed "):
        assert any(line.startswith(what) for line in lines)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "node.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def test_a_file_that_cannot_be_replaced_goes_on(tmp_path: Path, output: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OutputFile(tmp_path / "node.log", 80, 2, (output,))
    tries = []

    def refuse(*given: object) -> None:
        tries.append(given)
        raise PermissionError

    monkeypatch.setattr("cluster.runtime.output_file.Path.rename", refuse)
    for _ in range(100):
        os.write(output, b"x")
        file.look()
    assert (tmp_path / "node.log").stat().st_size == 100
    assert len(tries) == 3, "not at each line"
    monkeypatch.undo()
    for _ in range(10):
        os.write(output, b"x")
        file.look()
    assert (tmp_path / "node.log.1").exists()


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path, output: int) -> None:
    (tmp_path / "other").write_bytes(bytes(1000))
    file = OutputFile(tmp_path / "other", 10, 2, (output,))
    os.write(output, bytes(1000))
    file.look()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["node.log", "other"]


def test_who_follows_the_log_gets_the_end_of_the_file_before(tmp_path: Path, output: int) -> None:
    path = tmp_path / "node.log"
    file = OutputFile(path, 20, 3, (output,))
    os.write(output, b"first\n")
    lines, at = _read_from(path, NOWHERE)
    assert lines == ["first"]
    os.write(output, b"second\nthird\nfourth\n")
    file.look()
    os.write(output, b"fifth\n")
    lines, at = _read_from(path, at)
    assert lines == ["second", "third", "fourth", "fifth"]
    assert log_tail(NodeRecord(1, None, 1, 2, 3, 4, str(path)), 3) == ["third", "fourth", "fifth"]
    os.write(output, b"sixth\n")
    assert _read_from(path, at)[0] == ["sixth"]
    path.write_bytes(b"cut\n")
    assert _read_from(path, at)[0] == ["cut"], "somebody made it shorter"


def test_the_limits_of_a_node() -> None:
    section = LogOutputSection()
    assert (section.files, section.file_bytes_max) == (8, 32 << 20)
