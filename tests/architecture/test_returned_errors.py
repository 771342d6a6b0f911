"""An error that outlives its handler is kept without tracebacks: `raftlog.kept_errors.bare`.

A traceback holds the frames of the callers, and one of them holds the error: with it the request and its body, of
megabytes, stay until a garbage collection, which comes after many objects and not after many bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.rows import each_row
from tests.support.tree import nodes, sources

ROOMS = ("cluster", "statemachine", "raftlog", "raftmq_wire")


def kept_with_traceback(source: str) -> Iterator[int]:
    """Yields the lines that return, yield or assign an error that they have caught, as it is, or with its own
    traceback alone taken away: the error behind it has one too."""
    for handler in nodes(source):
        if isinstance(handler, ast.ExceptHandler) and handler.name is not None:
            for node in ast.walk(handler):
                if isinstance(node, ast.Return | ast.Yield | ast.Assign | ast.AnnAssign):
                    values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
                    if any(_is_error(value, handler.name) for value in values):
                        yield node.lineno


def _is_error(value: ast.expr | None, name: str) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "with_traceback":
        value = value.func.value
    return isinstance(value, ast.Name) and value.id == name


@each_row("room", ROOMS)
def test_no_error_is_kept_with_its_traceback(room: str) -> None:
    found = [f"{name}:{line}" for name, text in sources(room) for line in kept_with_traceback(text)]
    assert found == [], "keep bare(error)"


@each_row("kept", ["return {}", "yield {}", "found = {}", "found, why = None, {}", "found: object = {}"])
def test_one_that_is_planted_is_found(kept: str) -> None:
    planted = "def f():\n    try:\n        g()\n    except ValueError as error:\n        "
    assert list(kept_with_traceback(planted + kept.format("error"))) == [5]
    assert list(kept_with_traceback(planted + kept.format("error.with_traceback(None)"))) == [5]
    assert not list(kept_with_traceback(planted + kept.format("bare(error)")))
    assert not list(kept_with_traceback(planted + kept.format("str(error)")))
