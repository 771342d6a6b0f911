"""The history file: what is written is read back, and any other file is refused with the line that shows it."""

from __future__ import annotations

import itertools
import threading
import zlib
from pathlib import Path

import pytest

from jepsen_like import history as history_module
from jepsen_like.history import HistoryError, HistoryWriter, Op, pair_up, read_history
from tests.support.rows import each_row


@pytest.fixture(autouse=True, params=[1, 300, 1 << 17])
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets the same line by line, a few lines at once, and everything at once."""
    monkeypatch.setattr(history_module, "_BATCH_BYTES", request.param)


def write(path: Path, count: int = 3) -> Path:
    ticks = itertools.count(100, 10)
    with HistoryWriter(path, {"seed": 7}, clock=lambda: next(ticks)) as history:
        for process in range(count):
            invoked = history.invoke(process, "send", {"topic": "t", "id": f"m{process}"})
            (history.ok, history.fail, history.info)[process % 3](invoked, {"topic": "t", "id": f"m{process}"})
    return path


def test_round_trip(tmp_path: Path) -> None:
    history = read_history(write(tmp_path / "h.jsonl"))
    assert history.meta == {"seed": 7}
    assert history.complete
    assert history.ops[0] == Op(0, 0, "invoke", "send", {"topic": "t", "id": "m0"}, 100)
    assert [op.type for op in history.ops] == ["invoke", "ok", "invoke", "fail", "invoke", "info"]
    assert [op.time_ns for op in history.ops] == [100, 110, 120, 130, 140, 150]
    assert [operation.outcome for operation in pair_up(history.ops)] == ["ok", "fail", "info"]


def test_an_empty_history_is_a_history(tmp_path: Path) -> None:
    assert read_history(write(tmp_path / "h.jsonl", 0)).ops == []


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "h.jsonl")
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        HistoryWriter(path)
    assert path.read_bytes() == before


def test_threads_share_one_order(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as history:

        def work(process: int) -> None:
            for number in range(200):
                history.ok(history.invoke(process, "send", number), number)

        threads = [threading.Thread(target=work, args=(process,)) for process in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_history(path).ops) == 1600


def refused(path: Path, lines: list[bytes], line: int, why: str, *, allow_cut: bool = False) -> None:
    path.write_bytes(b"".join(lines))
    with pytest.raises(HistoryError, match=why) as caught:
        read_history(path, allow_cut=allow_cut)
    assert caught.value.line == line, caught.value
    assert str(caught.value).startswith(f"{path}: line {line}: ")


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    return write(tmp_path / "good.jsonl").read_bytes().splitlines(keepends=True)


@each_row(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\x7fELF\x02\x01", "not a history"),
        (b"time,process,value\n1,2,3\n", "not a history"),
        (b'{"package":"nat-traverse"}\n', "not a history"),
        (b'{"format":"other","version":1,"meta":{},"crc":"00000000"}\n', "the format is 'other'"),
        (b'{"format":"raftmq-history","version":2,"meta":{},"crc":"00000000"}\n', "history version 2"),
        (b"[]\n", "not a history"),
    ],
)
def test_a_foreign_file_is_refused_at_line_one(tmp_path: Path, data: bytes, why: str) -> None:
    refused(tmp_path / "h.jsonl", [data], 1, why, allow_cut=True)


@pytest.mark.parametrize("keep", range(1, 8))
def test_a_file_cut_at_a_line_end(tmp_path: Path, lines: list[bytes], keep: int) -> None:
    refused(tmp_path / "h.jsonl", lines[:keep], keep, "the closing line is missing")
    cut = read_history(tmp_path / "h.jsonl", allow_cut=True)
    assert (len(cut.ops), cut.complete) == (keep - 1, False)


def test_a_file_cut_inside_a_line(tmp_path: Path, lines: list[bytes]) -> None:
    refused(tmp_path / "h.jsonl", [*lines[:4], lines[4][:-5]], 5, "cut in the middle")
    assert len(read_history(tmp_path / "h.jsonl", allow_cut=True).ops) == 3


@pytest.mark.parametrize("line", range(2, 8))
def test_an_edited_line_is_named(tmp_path: Path, lines: list[bytes], line: int) -> None:
    lines[line - 1] = lines[line - 1].replace(b'"m', b'"M')
    refused(tmp_path / "h.jsonl", lines, line, "checksum does not fit")


def test_an_edited_line_with_a_fresh_checksum_of_its_own_is_still_found(tmp_path: Path, lines: list[bytes]) -> None:
    """Copying a line with its checksum from another history breaks the chain."""
    other = write(tmp_path / "other.jsonl", 6).read_bytes().splitlines(keepends=True)
    assert other[5] == lines[5]
    lines[5] = other[8].replace(b'"index":7', b'"index":4')
    refused(tmp_path / "h.jsonl", lines, 6, "checksum does not fit")


def test_a_removed_line_is_named(tmp_path: Path, lines: list[bytes]) -> None:
    del lines[3]
    refused(tmp_path / "h.jsonl", lines, 4, "checksum does not fit")


def test_two_lines_that_changed_places_are_named(tmp_path: Path, lines: list[bytes]) -> None:
    lines[2], lines[3] = lines[3], lines[2]
    refused(tmp_path / "h.jsonl", lines, 3, "checksum does not fit")


def test_a_line_that_is_not_a_step(tmp_path: Path, lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"type":"ok"', b'"type":"yes"')
    refused(tmp_path / "h.jsonl", lines, 3, "not a step of a history")
    lines[2] = b"\n"
    refused(tmp_path / "h.jsonl", lines, 3, "not a step of a history")


def test_more_after_the_end(tmp_path: Path, lines: list[bytes]) -> None:
    refused(tmp_path / "h.jsonl", [*lines, lines[1]], 9, "something follows the closing line")
    refused(tmp_path / "h.jsonl", [*lines, lines[-1]], 9, "something follows the closing line")


IMPOSSIBLE = {
    "completion without invocation": ([(1, "ok", "send", 0)], 0, "did not invoke"),
    "two invocations": ([(1, "invoke", "send", 0), (1, "invoke", "send", 1)], 1, "may still be under way"),
    "invocation after info": (
        [(1, "invoke", "send", 0), (1, "info", "send", 1), (1, "invoke", "send", 2)],
        2,
        "may still be under way",
    ),
    "another operation completed": ([(1, "invoke", "send", 0), (1, "ok", "read", 1)], 1, "did not invoke"),
    "two completions": ([(1, "invoke", "send", 0), (1, "ok", "send", 1), (1, "ok", "send", 2)], 2, "did not invoke"),
    "time runs backwards": ([(1, "invoke", "send", 9), (1, "ok", "send", 8)], 1, "backwards"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_steps(name: str) -> None:
    steps, index, why = IMPOSSIBLE[name]
    ops = [Op(i, process, kind, f, None, at) for i, (process, kind, f, at) in enumerate(steps)]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"op {index}: .*{why}"):
        pair_up(ops)


def test_impossible_steps_in_a_file_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as history:
        history.invoke(1, "send", None)
        history.invoke(1, "send", None)
    with pytest.raises(HistoryError, match="line 3: process 1 invokes"):
        read_history(path)


def test_a_step_with_the_index_of_another_is_named_even_if_every_checksum_fits(tmp_path: Path) -> None:
    crc, written = 0, []
    for body in (
        b'{"format":"raftmq-history","version":1,"meta":{}}',
        b'{"index":1,"process":0,"type":"invoke","f":"send","value":{},"time_ns":1}',
        b'{"end":1}',
    ):
        crc = zlib.crc32(body, crc)
        written.append(b'%s,"crc":"%08x"}\n' % (body[:-1], crc))
    refused(tmp_path / "h.jsonl", written, 2, "index 1 where 0 belongs")
