"""Options and arguments of every command that name a file or a folder of this machine refuse a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raftmq.cli import cli
from raftmq.commands.shared_options import NodeDirectory
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.local_path import check_local
from tests.support.rows import each_row

WORDS = ("DIR", "FILE", "FOLDER", "NEWDIR", "DIRECTORIES", "DIRECTORY", "PATH")
URL = "s3://bucket/x"


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yields every command with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


def is_path(param: click.Parameter) -> bool:
    """Returns True if a person is asked for a path and nothing else."""
    said = (param.metavar or (param.name or "").upper() if isinstance(param, click.Argument) else param.metavar) or ""
    return isinstance(param.type, click.Path) or said.removesuffix("...") in WORDS


PARAMS = [(words, command, param) for words, command in commands(cli) for param in command.params if is_path(param)]


def test_there_are_such_options() -> None:
    assert len(PARAMS) > 100


@each_row(("words", "command", "param"), PARAMS)
def test_a_path_is_no_url(words: tuple[str, ...], command: click.Command, param: click.Parameter) -> None:
    assert isinstance(param.type, LocalPath | NodeDirectory), f"{' '.join(words)} takes a URL for a folder's name"
    with click.Context(command), pytest.raises(LocalError, match=f"and {URL} is a URL") as refused:
        param.type.convert(URL, param, None)
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("words", [["spark", "report", "--plot"], ["export", "t", "--to"], ["status", "--data"]])
def test_nothing_is_made_of_a_url(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [*words, URL])
    assert isinstance(result.exception, SystemExit | LocalError)
    assert result.exit_code == ExitCode.USAGE
    assert not list(tmp_path.iterdir())


def test_a_file_url_is_led_to_its_path() -> None:
    with pytest.raises(LocalError) as refused:
        check_local("file:///lake/orders")
    assert refused.value.fix == "write a path: /lake/orders"
    with pytest.raises(LocalError):
        check_local(Path("s3://bucket/x"), "the folder")
    for path in ("/lake", "lake/s3:", "./s3:/bucket", "a:b", Path("x")):
        check_local(path)
