"""docs/cli.md names every command and option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from raftmq_wire.errors import ExitCode
from tests.support.command_tree import commands
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z]+(?:-[a-z]+)*(?: [a-z]+(?:-[a-z]+)*)?)(?![\w-])((?:[^`\\]|\\.)*)`", PAGE, re.MULTILINE)
EVERYWHERE = {"--json", "--output", "--data", "--servers", "--admin", "--tls-ca", "--tls-cert", "--tls-key", "--help"}


def documented() -> dict[str, str]:
    """Command -> the rest of its row's first cell."""
    known = commands()
    rows = {}
    for words, rest in ROWS:
        name = words if words in known else words.split(" ")[0]
        rows[name] = words.removeprefix(name) + rest
    return rows


def test_every_command_has_a_row() -> None:
    fields = {"seed", "acked", "read", "lost", "duplicated"}
    assert set(documented()) - fields == set(commands())


@each_row("name", sorted(commands()))
def test_every_option_is_in_its_row(name: str) -> None:
    shown = [param for param in commands()[name].params if not getattr(param, "hidden", False)]
    flags = {flag for param in shown for flag in param.opts if flag.startswith("--")}
    told = set(re.findall(r"--[a-z-]+", documented()[name]))
    assert told - flags == set(), "documented, but not there"
    assert flags - told - EVERYWHERE == set(), "there, but not documented"


def test_every_exit_code_is_explained() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == {*map(int, ExitCode), 130}
