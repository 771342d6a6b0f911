"""Two distributions from one tree: each file is in one of them, and the client imports nothing of the server."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.distributions import STAGING, stage

LIB = STAGING["LIB"]
PRIVATE = {"raftlog", "statemachine", "cluster", "jepsen_like"}
OF_THE_SERVER = ("raftmq.cli", "raftmq.commands", "raftmq.copies", "raftmq.local", *sorted(PRIVATE))
BEHIND_THE_COMMAND = {
    "raftmq/__main__.py",
    "pyspark_raftmq/copy_commands.py",
    "pyspark_raftmq/job_running.py",
    "pyspark_raftmq/jobs/audit.py",
    "pyspark_raftmq/jobs/rebuild.py",
    "pyspark_raftmq/source_login.py",
    "pyspark_raftmq/spark_cli.py",
    "pyspark_raftmq/table_command.py",
    "pyspark_raftmq/read_task.py",
}
"""Modules of the client's distribution that import the server's, once it is on the path: the command and its jobs."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return stage(tmp_path_factory.mktemp("staged"))


def files_of(tree: Path) -> set[Path]:
    return {path.relative_to(tree) for path in tree.rglob("*") if path.is_file()}


def test_every_file_of_the_product_is_in_one_of_them(trees: tuple[Path, Path]) -> None:
    client, server = map(files_of, trees)
    ours = set(STAGING["product_files"]())
    below_lib = {path.relative_to(LIB) for path in server if path.is_relative_to(LIB)}
    assert ours <= client | below_lib
    assert client & below_lib == set()
    assert below_lib <= ours
    assert {path for path in ours if path.parts[0] in PRIVATE} <= below_lib


def test_no_installed_file_is_in_both(trees: tuple[Path, Path]) -> None:
    built = {"LICENSE", "README.md", "pyproject.toml"}
    client, server = map(files_of, trees)
    assert {str(path) for path in client & server} == built
    assert {path.parts[0] for path in server if len(path.parts) > 1} == {"raftmq_server"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def is_of_the_server(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in OF_THE_SERVER)


def test_the_client_imports_nothing_of_the_server(trees: tuple[Path, Path]) -> None:
    """Even in functions, but for what runs behind the command."""
    client, _ = trees
    found = {
        path.relative_to(client).as_posix()
        for path in client.rglob("*.py")
        if any(map(is_of_the_server, imported(path)))
    }
    assert found == BEHIND_THE_COMMAND


def test_the_two_name_each_other_in_one_version(trees: tuple[Path, Path]) -> None:
    client, server = ((tree / "pyproject.toml").read_text() for tree in trees)
    assert 'server = ["raftmq-server==0.1.0"]' in client
    assert 'dependencies = ["raftmq==0.1.0", ' in server
    assert 'version = "0.1.0"' in client
    assert 'version = "0.1.0"' in server
