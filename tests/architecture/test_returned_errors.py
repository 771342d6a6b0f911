"""An error that is caught and returned is returned without its traceback.

The traceback holds the frames of the callers, and one of them holds the error: with it the request and its body, of
megabytes, stay until a garbage collection, which comes after many objects and not after many bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("cluster", "statemachine", "raftlog", "raftmq_wire")


def returned_with_traceback(source: str) -> Iterator[int]:
    """Yields the lines that return the error that they have caught as it is."""
    for handler in ast.walk(ast.parse(source)):
        if isinstance(handler, ast.ExceptHandler) and handler.name is not None:
            for node in ast.walk(handler):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id == handler.name:
                    yield node.lineno


@pytest.mark.parametrize("room", ROOMS)
def test_no_error_is_returned_with_its_traceback(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in returned_with_traceback(path.read_text())
    ]
    assert found == [], "return it .with_traceback(None)"


def test_one_that_is_planted_is_found() -> None:
    planted = "def f():\n    try:\n        g()\n    except ValueError as error:\n        return error\n"
    assert list(returned_with_traceback(planted)) == [5]
    assert not list(returned_with_traceback(planted.replace("return error", "return error.with_traceback(None)")))
