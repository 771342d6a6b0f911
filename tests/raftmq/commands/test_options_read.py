"""An option that a command offers is read: it is used in the command's code, and --data leads to the named cluster."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from cluster.backup.metadata import Metadata
from raftmq.cli import cli
from raftmq.commands.value_types import AddressType, NodeNameType
from tests.support.rows import each_row

OWN = {
    ("up",): "creates the cluster there",
    ("demo",): "creates a cluster there",
}
"""Commands whose --data is no cluster's directory yet, and why."""
MORE: dict[tuple[str, ...], list[str]] = {
    ("topic", "alter"): ["--queues", "1"],
    ("group", "clone"): ["--yes"],
    ("group", "reset"): ["--to", "earliest", "--yes"],
    ("dlq", "resend"): ["--all"],
    ("messages", "find"): ["--topic", "t", "--key", "k"],
}
"""What a command asks for beside its required options."""
WHOLE = {("config", "set"): ["config", "set", "retention.hours", "48", "--yes"]}
"""The whole line where the values are not those of any name."""


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


ALL = [(words, command) for words, command in commands(cli)]
WITH_DATA = [
    (words, command)
    for words, command in commands(cli)
    if words not in OWN and any("--data" in param.opts for param in command.params)
]


WITH_CA = [
    (words, command) for words, command in commands(cli) if {"--tls-ca"} <= {param.opts[0] for param in command.params}
]
"""tests/pyspark_raftmq has those of `raftmq spark`: their session is made once there."""


def unread(callback: Callable[..., Any]) -> set[str]:
    """Returns the parameters of a function that its body never mentions."""
    function = inspect.unwrap(callback)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    names = [node for part in tree.body for node in ast.walk(part) if isinstance(node, ast.Name)]
    return set(inspect.signature(function).parameters) - {node.id for node in names if isinstance(node.ctx, ast.Load)}


def ignored(command: click.Command) -> set[str]:
    """Returns what a command offers and does not read: parameters that its function never mentions, and options whose
    value goes to no parameter and to no callback that takes it."""
    assert command.callback is not None
    lost = {param.opts[0] for param in command.params if not param.expose_value and not takes_value(param.callback)}
    return unread(command.callback) | lost


def takes_value(callback: Callable[..., Any] | None) -> bool:
    """Returns True if the callback of an option reads its third parameter, the value."""
    if callback is None:
        return False
    return [*inspect.signature(callback).parameters][2] not in unread(callback)


@each_row(("words", "command"), ALL)
def test_each_value_is_used(words: tuple[str, ...], command: click.Command) -> None:
    assert ignored(command) == set()


def test_an_option_that_nobody_reads_is_found() -> None:
    def callback(ctx: click.Context, param: click.Parameter, value: str) -> str:
        return str(param)

    def reads(ctx: click.Context, param: click.Parameter, value: str) -> None:
        ctx.meta[str(param)] = value

    @click.command()
    @click.argument("topic")
    @click.option("--data")
    @click.option("--tls-ca", expose_value=False)
    @click.option("--admin", expose_value=False, callback=callback)
    @click.option("--servers", expose_value=False, callback=reads)
    def command(topic: str, data: str | None) -> str:
        del data
        return topic

    assert ignored(command) == {"data", "--tls-ca", "--admin"}


def value_of(param: click.Parameter, folder: Path) -> str:
    """Returns a value that the parameter takes."""
    kind = param.type
    if isinstance(kind, NodeNameType):
        return "1"
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if isinstance(kind, click.Path):
        return str(folder if kind.file_okay is False else folder / "file")
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return "1"
    return "host:1" if isinstance(kind, AddressType) else "x1"


def least(words: tuple[str, ...], command: click.Command, folder: Path) -> list[str]:
    """Returns the shortest command line that is complete."""
    if words in WHOLE:
        return WHOLE[words]
    line = list(words)
    for param in command.params:
        if isinstance(param, click.Argument) and param.required:
            line.append(value_of(param, folder))
        elif isinstance(param, click.Option) and param.required:
            line += [param.opts[0], value_of(param, folder)]
    return [*line, *MORE.get(words, [])]


@each_row(("words", "command"), WITH_DATA)
def test_data_names_the_cluster(
    words: tuple[str, ...], command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RAFTMQ_DATA", "RAFTMQ_SERVERS", "RAFTMQ_ADMIN"):
        monkeypatch.delenv(name, raising=False)
    nothing = Metadata(cluster_uuid="", applied_index=0, topics=[], groups=[], offsets=[], ends={})
    (tmp_path / "file").write_bytes(msgspec.json.encode(nothing))
    elsewhere = tmp_path / "elsewhere"
    result = CliRunner().invoke(cli, [*least(words, command, tmp_path), "--data", str(elsewhere)])
    assert str(elsewhere) in result.stderr, result.output


@each_row(("words", "command"), [each for each in WITH_CA if each[0][0] != "spark"])
def test_a_ca_is_read(
    words: tuple[str, ...], command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What --tls-ca remembers for the whole command is used by it."""
    monkeypatch.chdir(tmp_path)
    check_ca_is_read(words, command, tmp_path, monkeypatch)


def check_ca_is_read(
    words: tuple[str, ...], command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command names the file that --tls-ca named, which is not there."""
    for name in ("RAFTMQ_DATA", "RAFTMQ_SERVERS", "RAFTMQ_ADMIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(MORE, ("rolling-restart",), ["--exec", "true"])
    nothing = Metadata(cluster_uuid="", applied_index=0, topics=[], groups=[], offsets=[], ends={})
    (tmp_path / "file").write_bytes(msgspec.json.encode(nothing))
    missing, offered = tmp_path / "no-ca.crt", {param.opts[0] for param in command.params}
    where = ["--servers", "127.0.0.1:1"] if "--servers" in offered else ["--admin", "https://127.0.0.1:1"]
    result = CliRunner().invoke(cli, [*least(words, command, tmp_path), *where, "--tls-ca", str(missing)])
    assert str(missing) in result.stderr, result.output
