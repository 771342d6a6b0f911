"""docs/cli.md names every command and option, and no other."""

from __future__ import annotations

import functools
import pkgutil
import re
import tomllib
from pathlib import Path

import click
import pytest

from raftmq.cli import COMMANDS, ENTRY_POINT_GROUP, cli
from raftmq_wire.errors import ExitCode

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z]+(?:-[a-z]+)*(?: [a-z]+(?:-[a-z]+)*)?)(?![\w-])((?:[^`\\]|\\.)*)`", PAGE, re.MULTILINE)
EVERYWHERE = {"--json", "--output", "--data", "--servers", "--admin", "--tls-ca", "--tls-cert", "--tls-key", "--help"}


@functools.cache
def plugins() -> dict[str, str]:
    """Commands of the packages above, as pyproject.toml names them: an editable install may be older than that."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    found: dict[str, str] = table[ENTRY_POINT_GROUP]
    return found


def commands() -> dict[str, click.Command]:
    """ "topic create" -> command."""
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in (*COMMANDS, *plugins()):
        command = pkgutil.resolve_name(plugins()[name]) if name in plugins() else cli.get_command(context, name)
        assert isinstance(command, click.Command)
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
    shown = [param for param in commands()[name].params if not getattr(param, "hidden", False)]
    flags = {flag for param in shown for flag in param.opts if flag.startswith("--")}
    told = set(re.findall(r"--[a-z-]+", documented()[name]))
    assert told - flags == set(), "documented, but not there"
    assert flags - told - EVERYWHERE == set(), "there, but not documented"


def test_every_exit_code_is_explained() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == {*map(int, ExitCode), 130}
