"""Tables of the command line show names, ids and addresses whole: on narrow terminals, and piped."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from raftmq.commands import shared_options
from raftmq.commands.nodes.top import COLUMNS, page
from tests.raftmq.commands.test_top import view

KEY = "cluster.producer_session_timeout_and_a_name_that_nobody_should_have_to_guess_ms"
ADDRESS = "[2001:db8:0:0:8d3:0:0:1]:10911"
TITLES = ["key", "state", "value", "default", "set", "by"]
ROWS = [
    [
        KEY,
        Text("maintenance", "yellow"),
        86_400_000,
        None,
        "2026-11-22 03:04:05",
        "operator@a-host-with-a-name.example",
    ],
    ["[red]k[/]", Text("up", "green"), 1, 2, ADDRESS, "[/]"],
]
PLAIN: Any = {"color_system": None, "highlight": False, "soft_wrap": True}
WORDS = [str(cell) for row in ROWS for cell in row if cell is not None]


@pytest.mark.parametrize("width", [60, 80, 400])
def test_a_terminal_shows_every_cell_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    shared_options.print_table(TITLES, ROWS)
    shown = capsys.readouterr().out
    assert [word for word in [*TITLES, *WORDS] if word not in shown] == []
    assert "…" not in shown


def test_what_is_piped_does_not_depend_on_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for width in ("20", "80", "1000"):
        monkeypatch.setenv("COLUMNS", width)
        shared_options.print_table(TITLES, ROWS)
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1
    assert [word for word in WORDS if word not in shown[0]] == []
    assert [len(shown[0].splitlines()), shown[0].splitlines()[0].split()] == [1 + len(ROWS), TITLES]


@pytest.mark.parametrize(("width", "gone"), [(60, {"up", "clients", "in flight"}), (120, set())])
def test_top_gives_up_columns_and_cuts_none(width: int, gone: set[str]) -> None:
    out = Console(file=io.StringIO(), width=width)
    out.print(page(view(123_456_789), [], {}, 10.0, width))
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    assert "…" not in shown
    assert "123456789" in shown
    assert [title for title in COLUMNS if title not in shown.splitlines()[1]] == [t for t in COLUMNS if t in gone]
