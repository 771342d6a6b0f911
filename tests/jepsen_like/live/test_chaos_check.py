"""`raftmq chaos check`: a run's folder or a file is judged; what is no whole history is unknown, with the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_like.history import HistoryWriter
from raftmq.cli import run


def record(folder: Path, *, lose: bool = False) -> Path:
    folder.mkdir()
    with HistoryWriter(folder / "history.jsonl", {"workload": "log"}) as history:
        for number in range(3):
            sent = history.invoke(number, "send", {"topic": "t", "id": f"m{number}"})
            history.ok(sent, sent.value | {"queue_id": 0, "queue_offset": number})
        read = history.invoke(9, "read", {"node": 1, "topic": "t", "queue_id": 0, "offset": 0})
        rows = [[number, f"m{number}"] for number in range(2 if lose else 3)]
        history.ok(read, {"messages": rows, "end": True})
    return folder


@pytest.mark.parametrize(("lose", "code", "word"), [(False, 0, "valid"), (True, 1, "invalid")])
def test_a_folder_and_its_file_are_judged_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lose: bool, code: int, word: str
) -> None:
    folder = record(tmp_path / "run", lose=lose)
    assert run(["chaos", "check", str(folder), "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == word
    assert run(["chaos", "check", str(folder / "history.jsonl"), "--json"]) == code
    assert json.loads(capsys.readouterr().out) == told


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "cut in a line": (lambda data: data[:-70], 9, "cut in the middle"),
    "cut at a line": (lambda data: b"".join(data.splitlines(keepends=True)[:4]), 4, "the closing line is missing"),
    "edited": (lambda data: data.replace(b'"queue_offset":1', b'"queue_offset":7'), 5, "the checksum does not fit"),
    "foreign": (lambda data: b'{"type":"invoke","process":0}\n' + data, 1, "not a history"),
    "not even text": (lambda data: b"\xff\x00" * 9, 1, "not a history"),
    "empty": (lambda data: b"", 1, "the file is empty"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_no_whole_history_is_unknown_with_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damage, line, why = DAMAGE[name]
    path = record(tmp_path / "run") / "history.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    assert run(["chaos", "check", str(path), "--json"]) == 3
    (doubt,) = json.loads(capsys.readouterr().out)["unknown"]
    assert doubt.startswith(f"line {line}: ")
    assert why in doubt


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "does not exist"),
        (["."], "holds no history.jsonl"),
        ([".", "--workload", "lok"], "did you mean log"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["chaos", "check", *arguments]) == 2
    assert said in capsys.readouterr().err
