"""Which test files and which seeds of the simulator run the statement that a mutant changes: no others can notice it.

One run of the unmutated tests answers it for all mutants: in front of each statement stands a mark. What a file only
sometimes runs (threads) may be missed, so a mutant may be called a survivor that is none, never the other way round.

    python -m jepsen_like.mutants.reach ROOT '{"tests": [...], "chunks": [...]}'    in a marked copy
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from jepsen_like.mutants.records import Row
from jepsen_like.mutants.workshop import Workshop

MARK = "__reached__"
EVERYWHERE = ""
"""Where a mark counts for every test file: in an import, or in a fixture that is made once for all."""
MEASURE_TIMEOUT_S = 3600
_WITHOUT_MARKS = f"import builtins\nbuiltins.{MARK} = set().add\n"


class Measured(NamedTuple):
    """One test file, or one chunk of seeds."""

    of: str
    """Hash of all that it may hang on."""
    seconds: float
    reached: tuple[str, ...]
    """Names of rows."""


class Reach:
    """What is known about where each mutant is run; kept in a file, since it holds until a file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        fields = json.loads(path.read_text()) if path.exists() else {}
        self._measured = {name: Measured(of, s, tuple(rows)) for name, (of, s, rows) in fields.items()}

    def measure(self, rows: Iterable[Row], tests: Sequence[str], chunks: Sequence[str], workshop: Workshop) -> None:
        """Runs what is not known yet or has changed. `tests`: files; `chunks`: as `chunk_name` gives them."""
        texts, marks, outside = _marked(rows, workshop.root)
        common = _hash_of(workshop.root, texts)
        wanted = dict.fromkeys((*chunks, EVERYWHERE), common) | {
            name: hashlib.sha256((common + (workshop.root / name).read_text()).encode()).hexdigest() for name in tests
        }
        new = [name for name, of in wanted.items() if name not in self._measured or self._measured[name].of != of]
        if not new:
            return
        asked = {"tests": sorted(set(tests) & set(new)), "chunks": sorted(set(chunks) & set(new))}
        for name, (seconds, numbers) in _run(texts, asked, workshop).items():
            reached = {marks[number] for number in numbers}
            if name == EVERYWHERE:
                reached |= {*outside, *self._everywhere(common)}
            self._measured[name] = Measured(wanted[name], seconds, tuple(sorted(reached)))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._measured))

    def _everywhere(self, of: str) -> tuple[str, ...]:
        """What an earlier run found to count for all, if that still holds."""
        known = self._measured.get(EVERYWHERE)
        return known.reached if known and known.of == of else ()

    def tests(self, row: Row, tests: Sequence[str]) -> list[str]:
        """Those of the files that run it, quick ones first. All, if it stands outside functions."""
        found = [name for name in tests if self.reaches(row, name)]
        return sorted(found, key=lambda name: self._measured[name].seconds if name in self._measured else 0.0)

    def reaches(self, row: Row, name: str) -> bool:
        """Whether this test file or chunk of seeds runs it; yes, if nobody measured it."""
        measured = self._measured.get(name)
        return measured is None or any(row.name in each.reached for each in (measured, self._measured[EVERYWHERE]))


def chunk_name(engine: str, first: int, seeds: int) -> str:
    """A range of seeds."""
    return f"{engine}:{first}:{seeds}"


def place(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int] | None:
    """The innermost statement of a function that holds the line: the block it stands in, and its place there."""
    found: tuple[list[ast.stmt], int] | None = None
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, inside = todo.pop()
        for block in _blocks(node):
            for at, child in enumerate(block):
                if child.lineno <= line <= (child.end_lineno or child.lineno):
                    found = (block, at) if inside else None
                    todo.append((child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)))
    return found


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _marked(rows: Iterable[Row], root: Path) -> tuple[dict[str, str], list[str], list[str]]:
    """File -> its text with marks; the row of each mark's number; rows that stand outside functions."""
    trees: dict[str, ast.Module] = {}
    marks: list[tuple[list[ast.stmt], ast.stmt, int]] = []
    names: list[str] = []
    outside: list[str] = []
    for row in rows:
        text = (root / row.file).read_text()
        at = row.found_at(text)
        if at is None:
            continue
        tree = trees.setdefault(row.file, ast.parse(text))
        found = place(tree, at + 1)
        if found is None:
            outside.append(row.name)
            continue
        marks.append((found[0], found[0][found[1]], len(names)))
        names.append(row.name)
    for block, before, number in marks:
        block.insert(block.index(before), ast.parse(f"{MARK}({number})").body[0])
    texts = {file: ast.unparse(ast.fix_missing_locations(tree)) + "\n" for file, tree in trees.items()}
    return texts, names, outside


def _hash_of(root: Path, marked: Mapping[str, str]) -> str:
    """Of all Python files but tests and this tool, and of the marks."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if not path.name.startswith("test_") and path.parent.name != "mutants":
            found.update(path.read_bytes())
    for file in sorted(marked):
        found.update(marked[file].encode())
    return found.hexdigest()


def _run(texts: Mapping[str, str], request: dict[str, Any], workshop: Workshop) -> dict[str, tuple[float, list[int]]]:
    with ExitStack() as stack:
        for file, text in texts.items():
            stack.enter_context(workshop.holding(file, text))
        customize = workshop.root / "sitecustomize.py"  # for processes that tests start
        customize.write_text(_WITHOUT_MARKS)
        stack.callback(customize.unlink)
        return workshop.call("jepsen_like.mutants.reach", request, MEASURE_TIMEOUT_S)


# -- inside the copy


class _Watch:
    """A pytest plugin: notes the marks that each test file passes."""

    def __init__(self) -> None:
        self.reached: dict[str, set[int]] = {EVERYWHERE: set()}
        self.seconds: dict[str, float] = {EVERYWHERE: 0.0}
        self._where = EVERYWHERE

    def mark(self, number: int) -> None:
        self.reached[self._where].add(number)

    def begin(self, where: str) -> None:
        self._where = where
        self.reached.setdefault(where, set())
        self.seconds.setdefault(where, 0.0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begin(nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def hold(self, scope: str) -> Generator[None, Any, Any]:
        where, self._where = self._where, EVERYWHERE if scope in ("session", "package") else self._where
        try:
            return (yield)
        finally:
            self._where = where


def main(root: str, request_text: str) -> int:
    """Prints, for each test file and chunk: seconds, and the numbers of the marks it passed."""
    import pytest

    from jepsen_like.seeded_bugs.engines import ENGINES
    from jepsen_like.seeded_bugs.worker import search

    request = json.loads(request_text)
    watch = _Watch()
    setattr(builtins, MARK, watch.mark)

    class Plugin:
        pytest_runtest_logstart = staticmethod(watch.pytest_runtest_logstart)
        pytest_runtest_logreport = staticmethod(watch.pytest_runtest_logreport)

        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
            return (yield from watch.hold(fixturedef.scope))

    if request["tests"]:
        pytest.main(
            [*request["tests"], "-q", "--tb=short", "-p", "no:cacheprovider", "-m", "not slow and not live"],
            plugins=[Plugin()],
        )
    for test in request["tests"]:
        watch.begin(test)  # a file of slow tests alone passes none
    for chunk in request["chunks"]:
        engine, first, seeds = chunk.split(":")
        watch.begin(chunk)
        started = time.monotonic()
        search(
            ENGINES[engine],
            {"first_seed": int(first), "seeds": int(seeds), "kills_enough": 1, "checkers": [], "black_box": False},
        )
        watch.seconds[chunk] = time.monotonic() - started
    sys.stdout.write(
        "\n" + json.dumps({name: (watch.seconds[name], sorted(marks)) for name, marks in watch.reached.items()}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
