"""docs/cli.md names every command and option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cluster.errors import ExitCode
from raftmq.cli import cli

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z]+(?:-[a-z]+)*(?: [a-z]+)?)\b((?:[^`\\]|\\.)*)`", PAGE, re.MULTILINE)
EVERYWHERE = {"--json", "--data", "--servers", "--admin", "--help"}


def commands() -> dict[str, click.Command]:
    """ "topic create" -> command."""
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {sub}": each for sub, each in command.commands.items()}
        else:
            found[name] = command
    return found


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


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_is_in_its_row(name: str) -> None:
    flags = {flag for param in commands()[name].params for flag in param.opts if flag.startswith("--")}
    told = set(re.findall(r"--[a-z-]+", documented()[name]))
    assert told - flags == set(), "documented, but not there"
    assert flags - told - EVERYWHERE == set(), "there, but not documented"


def test_every_exit_code_is_explained() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == {*map(int, ExitCode), 130}
