"""The sources of this tree, read once and parsed once by a process, for the tests that look at all of them.

They are some 2,000 files, and parsing them takes longer than all that is then asked of them. Who changes a syntax tree
parses its own. tests/architecture gives the memory back when its last test is done (`forget`); tests/conftest.py runs
the files that share this in one process.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("raftmq_wire", "raftlog", "statemachine", "cluster", "raftmq", "jepsen_like", "pyspark_raftmq")
"""The packages of the product, lowest first."""


@cache
def python_files(folder: str) -> tuple[Path, ...]:
    """The Python files below a folder of the tree, in order of their names."""
    return tuple(sorted((ROOT / folder).rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    """What is in the file, as UTF-8."""
    return path.read_text(encoding="utf-8")


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """Yields name (from the root of the tree) and text of each Python file below the folders."""
    for folder in folders:
        for path in python_files(folder):
            yield path.relative_to(ROOT).as_posix(), text_of(path)


@cache
def parsed(text: str) -> ast.Module:
    """Returns the syntax tree of a text. Every caller gets the same one."""
    # A million objects that stay: the collector would walk them all again for each part of them that is added.
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collects:
            gc.enable()


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Returns what `ast.walk` yields for the syntax tree of a text."""
    return tuple(ast.walk(parsed(text)))


def forget() -> None:
    """Gives the memory back."""
    python_files.cache_clear()
    text_of.cache_clear()
    parsed.cache_clear()
    nodes.cache_clear()
