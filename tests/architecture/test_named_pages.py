"""No message sends a reader to a file of the sources, which an installed package does not have.

A message says what to type, or names a page of the docs by its title: the page "Guarantees" of the docs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.rows import each_row
from tests.support.tree import ROOT, nodes, sources

PACKAGES = ("cluster", "jepsen_like", "pyspark_raftmq", "raftlog", "raftmq", "raftmq_wire", "statemachine")
FILE = re.compile(r"\bdocs/|\b[\w-]+\.md\b")
TITLED = re.compile(r'[Tt]he page\s+"([^"]+)" of the docs')
NO_MESSAGES = {
    ("cluster/admin/findings/catalogue.py", "docs/runbooks.md"): "an address for programs; people get `raftmq runbook`",
    ("cluster/admin/handlers/dashboard.py", "runbooks.md"): "a file of the package",
    ("cluster/config/explain.py", "configuration.md"): "a file of the package",
    ("jepsen_like/seeded_bugs/kernels.py", "README.md"): "a file that setuptools needs in a copy of the sources",
}
"""Strings that are no messages, with the reason."""


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each string that somebody may read: the constants, and the help of commands, which is
    their docstring."""
    alone = {id(node.value) for node in nodes(source) if isinstance(node, ast.Expr)}
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef) and any(map(_makes_command, node.decorator_list)):
            yield node.lineno, ast.get_docstring(node) or ""


def _makes_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in ("command", "group")


@cache
def all_messages() -> list[tuple[Path, int, str]]:
    """Returns (path, line, text) of the messages in files that mention documentation."""
    return [
        (Path(name), line, text)
        for name, source in sources(*PACKAGES)
        if "docs" in source or ".md" in source
        for line, text in messages(source)
    ]


def titles() -> set[str]:
    """Returns the titles of the pages."""
    return {path.read_text().partition("\n")[0].removeprefix("# ") for path in (ROOT / "docs").glob("*.md")}


def test_no_message_names_a_file_of_the_docs() -> None:
    found = [(path, line, text) for path, line, text in all_messages() if FILE.search(text)]
    wrong = [f"{path}:{line} {text}" for path, line, text in found if (str(path), text) not in NO_MESSAGES]
    assert not wrong, "\n".join(['say what to type, or: the page "TITLE" of the docs', *wrong])
    assert {(str(path), text) for path, _, text in found} == set(NO_MESSAGES), "an exception that nothing needs"


def test_the_pages_that_messages_name_have_these_titles() -> None:
    named = [(f"{path}:{line}", title) for path, line, text in all_messages() for title in TITLED.findall(text)]
    assert len(named) > 5
    assert not [each for each in named if each[1] not in titles()]


def test_no_file_that_is_used_without_the_sources_names_one_of_the_docs() -> None:
    """Pages of the dashboard, configurations of containers, and the unit of systemd."""
    used = [
        path
        for pattern in ("cluster/admin/static/*.js", "cluster/admin/static/*.html", "docker/*.toml", "deploy/systemd/*")
        for path in sorted(ROOT.glob(pattern))
    ]
    assert len(used) > 10
    assert [path for path in used if "docs/" in path.read_text()] == []
    named = {title for path in used for title in TITLED.findall(path.read_text())} - {"$1"}  # the text of a link
    assert named
    assert named <= titles()


@each_row(
    "planted",
    [
        'raise LocalError("it is open", "nobody signs", "write the keys (docs/security.md)")',
        'print(f"{key}: docs/configuration.md lists the keys")',
        'FIX = "put these ports behind a firewall (SECURITY.md)"',
        '@click.command()\ndef reload() -> None:\n    """Read files again.\n\n    docs/running.md says which.\n    """',
        '@node.command("list")\ndef list_nodes() -> None:\n    """List what members.md explains."""',
    ],
)
def test_a_planted_message_is_found(planted: str) -> None:
    assert any(FILE.search(text) for _, text in messages(planted))


def test_docstrings_may_name_files_because_only_readers_of_the_sources_see_them() -> None:
    source = (
        '"""Drawn in docs/disk-format.md."""\nLIMIT = 3\n"""docs/style.md"""\ndef f() -> None:\n    """docs/x.md"""'
    )
    assert not [text for _, text in messages(source) if FILE.search(text)]
