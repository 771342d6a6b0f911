"""What grows unseen: circles of imports, long functions, many modules of one name. Each test prints its counts."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PRODUCT = ("raftlog", "statemachine", "cluster", "raftmq", "jepsen_like", "pyspark_raftmq")

FUNCTION_LINES_MAX = 60
# Functions that are longer, and why.
LONGER = {
    "cluster/config/rules.py _check_limits": "a table: which value must not pass which",
    "cluster/remoting/send.py _accept": "the hot path: a call less, and one argument per line",
    "jepsen_like/sim/options.py draw": "a table: what each option is drawn from, in an order that seeds depend on",
    "raftlog/core/raft.py __init__": "a table: every field of the core, with what it means",
}
SAME_NAME_MAX = 3
# Names that say enough together with their folder.
ANY_NUMBER = {"__init__", "__main__", "errors"}


def imports() -> dict[str, set[str]]:
    """Module -> modules of the product that it imports, for annotations too."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circles(edges: dict[str, set[str]]) -> list[frozenset[str]]:
    """The largest sets of modules that all import one another, directly or not."""
    reach = {module: reachable(module, edges) for module in edges}
    together = {
        frozenset({module, *(other for other in reach[module] if module in reach[other])})
        for module in edges
        if module in reach[module]
    }
    return sorted(together, key=lambda circle: (-len(circle), min(circle)))


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(edges[start])
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += edges[module]
    return found


def test_circles_are_found() -> None:
    edges: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert circles(edges) == [frozenset("abc")]


def test_no_imports_in_a_circle() -> None:
    found = circles(imports())
    for circle in found:
        print(len(circle), *sorted(circle))  # noqa: T201 - on record with -s
    assert found == [], "cut these: move what both need below both"


def product_files() -> Iterator[Path]:
    for package in PRODUCT:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_functions_are_short() -> None:
    lengths = sorted(
        (node.end_lineno - node.lineno + 1, f"{path.relative_to(ROOT)} {node.name}")
        for path in product_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    )
    for lines, where in lengths[-10:]:
        print(lines, where)  # noqa: T201
    assert {where for lines, where in lengths if lines > FUNCTION_LINES_MAX} == set(LONGER)


def test_few_modules_have_one_name() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for path in product_files():
        if path.stem not in ANY_NUMBER:
            named[path.stem].append(str(path.relative_to(ROOT)))
    for name, paths in sorted(named.items(), key=lambda each: -len(each[1])):
        if len(paths) >= SAME_NAME_MAX:
            print(len(paths), name, *paths)  # noqa: T201
    assert [name for name, paths in named.items() if len(paths) > SAME_NAME_MAX] == []


def test_no_import_hides_in_a_string() -> None:
    """A module of the server that is named in a string would be an arrow that no contract sees."""
    hidden = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in product_files()
        if path.relative_to(ROOT).parts[0] == "cluster"
        for match in re.finditer(r"import_module\W+.*", path.read_text())
    ]
    assert hidden == []
