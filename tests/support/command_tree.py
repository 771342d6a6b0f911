"""All commands of `raftmq`, those of the packages above included."""

from __future__ import annotations

import functools
import pkgutil
import tomllib
from pathlib import Path

import click

from raftmq.cli import COMMANDS, ENTRY_POINT_GROUP, cli

ROOT = Path(__file__).parents[2]


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
