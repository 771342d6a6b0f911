"""Options and arguments of every command that name a server, a store or a Spark refuse a value of another kind.

They name it, and nothing is done before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from cluster.backup.metadata import Metadata
from raftmq.cli import cli
from raftmq.commands.data.table_steps import TableType
from raftmq.commands.value_types import AddressType, ApiType, ListenerType, SparkMasterType, StoreType
from raftmq_wire.errors import ExitCode, LocalError
from tests.raftmq.commands.test_local_paths import commands
from tests.raftmq.commands.test_options_read import MORE, least
from tests.support.rows import each_row

STORE = (StoreType, ("gopher://x/y", "s3:/bucket", "http://10.0.0.1/x", "file://host/x"))
API = (ApiType, ("s3://bucket/x", "/srv/x", "host"))
KINDS: dict[str, tuple[type[click.ParamType[str]], tuple[str, ...]]] = {
    "HOST:PORT": (AddressType, ("s3://bucket/x", "http://10.0.0.1:9644", "/srv/x", "host", "host:x")),
    "NAME=HOST:PORT": (ListenerType, ("broker=s3://bucket/x", "broker=/srv/x", "10.0.0.1:9876", "=h:1", "b=h")),
    "DIR|URL": STORE,
    "DIR/NAME|URL/NAME": STORE,
    "DIR[/NAME]|URL[/NAME]": STORE,
    "COPY": STORE,
    "COPY...": STORE,
}
"""What a person is asked for -> its type, and values of other kinds."""
URLS: dict[str, tuple[type[click.ParamType[str]], tuple[str, ...]]] = {
    "--via": API,
    "--join": API,
    "--tier": STORE,
    "--from-tier": (StoreType, (*STORE[1], "/srv/x", "10.0.0.1:9876")),
    "--master": (SparkMasterType, ("/srv/x", "10.0.0.1:7077", "http://10.0.0.1", "local[")),
}
"""The same for options whose URLs, or addresses, are of different kinds."""
TABLES = (("table",), ("spark", "table"), ("spark", "export"))
"""Commands whose folder or URL is that of a table."""
ANY_CLUSTER = ("HOST:PORT;…", "HOST:PORT,…")
"""Options that take names of contexts, too, so that only the command knows."""
MARKS = ("HOST", "URL", "COPY", "ADDRESS")
OTHER = {
    ("config", "init", "hosts"): "tests/raftmq/commands/test_config_files.py",
    ("acl", "set", "--source"): "the node checks it: tests/cluster/admin",
    ("acl", "test", "--source"): "the node checks it: tests/cluster/admin",
}
"""A parameter with such a mark that names none of these kinds -> where it is tested."""


def kind_of(
    words: tuple[str, ...], param: click.Parameter
) -> tuple[type[click.ParamType[Any]], tuple[str, ...]] | None:
    if param.metavar == "DIR|URL" and any(words[: len(each)] == each for each in TABLES):
        return TableType, STORE[1]
    return URLS.get(param.opts[0]) or KINDS.get(param.metavar or "")


PLACES = [
    (words, command, param)
    for words, command in commands(cli)
    for param in command.params
    if any(mark in (param.metavar or "") for mark in MARKS)
    and param.metavar not in ANY_CLUSTER
    and (*words, param.opts[0]) not in OTHER
]
ANY = [
    (words, command, param)
    for words, command in commands(cli)
    for param in command.params
    if param.metavar in ANY_CLUSTER
]


def test_there_are_such_options() -> None:
    assert len(PLACES) > 20
    assert len(ANY) > 80


@each_row(("words", "command", "param"), PLACES)
def test_a_value_of_another_kind_is_refused(
    words: tuple[str, ...], command: click.Command, param: click.Parameter
) -> None:
    found = kind_of(words, param)
    assert found is not None, f"{' '.join(words)} {param.opts[0]} asks for {param.metavar}, which is in no table here"
    kind, others = found
    assert isinstance(param.type, kind), f"{' '.join(words)} {param.opts[0]} takes anything"
    for value in others:
        with click.Context(command), pytest.raises((LocalError, click.BadParameter)) as refused:
            param.type.convert(value, param, None)
        assert not isinstance(refused.value, LocalError) or refused.value.exit_code is ExitCode.USAGE
        assert value.partition("=")[2] in str(refused.value) or value in str(refused.value)


@each_row(("words", "command", "param"), ANY)
@each_row("value", ["s3://bucket/x", "/srv/x", "no-such-context"])
def test_a_cluster_is_named_by_addresses_or_a_context(
    words: tuple[str, ...],
    command: click.Command,
    param: click.Parameter,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    nothing = Metadata(cluster_uuid="", applied_index=0, topics=[], groups=[], offsets=[], ends={})
    (tmp_path / "file").write_bytes(msgspec.json.encode(nothing))
    monkeypatch.setitem(MORE, ("rolling-restart",), ["--exec", "true"])
    monkeypatch.setitem(MORE, ("context", "add"), ["--admin", "10.0.0.1:9644"])
    result = CliRunner().invoke(cli, [*least(words, command, tmp_path), param.opts[0], value])
    assert result.exit_code == ExitCode.USAGE, result.output
    assert value in result.stderr


def test_places_are_taken_as_they_were() -> None:
    """Values of the right kind come out unchanged."""
    right: list[tuple[click.ParamType[str], tuple[str, ...]]] = [
        (AddressType(), ("10.0.0.1:9876", "[::1]:9876", "node-1.example:1")),
        (ListenerType(), ("broker=10.0.0.4:10911", "outside=[::1]:1")),
        (ApiType(), ("10.0.0.1:9644", "http://10.0.0.1:9644", "https://10.0.0.1:9644")),
        (StoreType(paths=True), ("/srv/x", "x", "./a:b", "s3://bucket/x/name", "file:///srv/x", "gs://b")),
        (StoreType(paths=False), ("s3://bucket/x", "file:///srv/x")),
        (
            SparkMasterType(),
            ("local", "local[2]", "local[*]", "local[2,4]", "spark://h:7077", "yarn", "k8s://https://h"),
        ),
    ]
    for kind, values in right:
        assert [kind.convert(value, None, None) for value in values] == [*values]


NAMES = [
    (words, command, param)
    for words, command in commands(cli)
    for param in command.params
    if (param.opts[0] in ("topic", "--topic", "group", "--group") and words[0] != "broker-group")
    or (words[0] in ("topic", "group") and param.opts[0] in ("name", "source"))
]


@each_row(("words", "command", "param"), NAMES)
def test_what_can_be_no_name_is_refused_before_anything_is_sent(
    words: tuple[str, ...], command: click.Command, param: click.Parameter
) -> None:
    for value in ("my orders", "a/b", "", "ä", "a\n"):
        with click.Context(command), pytest.raises(LocalError) as refused:
            param.type.convert(value, param, None)
        assert refused.value.exit_code is ExitCode.USAGE
        assert "letters, digits and the signs % | _ -" in refused.value.why
    assert param.type.convert("%RETRY%billing", param, None) == "%RETRY%billing"
