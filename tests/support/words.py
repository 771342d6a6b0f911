"""The words in the product's code: docstrings of modules, classes, functions and attributes, and comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.tree import PACKAGES, ROOT, parsed, python_files, text_of

FOLDERS = (*PACKAGES, "bench", "examples", ".ci")

Text = tuple[int, str]
"""(line, words)."""


def product_files() -> list[Path]:
    return [path for folder in FOLDERS for path in python_files(folder)] + [ROOT / "setup.py"]


def docstrings(source: ast.AST) -> list[Text]:
    """Strings that stand alone: of modules, classes and functions, and of the attributes before them."""
    return [
        (node.lineno, node.value.value)
        for node in statements(source)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def statements(scope: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below `scope`; what is inside of expressions holds none."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(scope, field, None)
        for node in inner if isinstance(inner, list) else ():
            yield node
            yield from statements(node)


def comments(source: str) -> list[Text]:
    found = ((number, re.search(r"(?:^|\s)#+ (.*)$", line)) for number, line in enumerate(source.splitlines(), 1))
    return [(number, match[1]) for number, match in found if match]


@cache
def words_of(path: Path) -> tuple[list[Text], list[Text]]:
    """Docstrings and comments of a file."""
    source = text_of(path)
    return docstrings(parsed(source)), comments(source)
