"""`make shape`: prints what a reviewer of the tree's shape looks at first. Nothing here fails.

The longest files and functions, the modules that most others import, names that many modules share, the fullest
folders, and the floors that the import contracts hold.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PRODUCT = ("raftmq_wire", "raftlog", "statemachine", "cluster", "raftmq", "jepsen_like", "pyspark_raftmq")
SHOWN = 10


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def show(title: str, rows: Iterable[str]) -> None:
    print(title, *(f"  {row}" for row in rows), "", sep="\n")  # noqa: T201


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number of lines, names of the file and of the function) for each function in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1, f"{name_of(path)} {node.name}"


def imported() -> Counter[str]:
    """Returns module -> the number of modules that import it, for all modules of the product."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    return Counter({module: len(graph.find_modules_that_directly_import(module)) for module in graph.modules})


def floors() -> Iterator[str]:
    """Yields a line for each container of the import contracts, and then one for each of its layers, from the top."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for contract in project["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", []):
            yield f"{container}, {len(contract['layers'])} floors"
            yield from (f"  {layer}" for layer in contract["layers"])


def main() -> None:
    files = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
    modules = [path for path in files if path.name != "__init__.py"]
    lengths = sorted(((len(path.read_text().splitlines()), name_of(path)) for path in files), reverse=True)
    show("Longest files", (f"{lines:4} {name}" for lines, name in lengths[:SHOWN]))
    longest = sorted((each for path in files for each in functions(path)), reverse=True)
    show("Longest functions", (f"{lines:4} {name}" for lines, name in longest[:SHOWN]))
    show("Most imported modules", (f"{count:4} {name}" for name, count in imported().most_common(SHOWN)))
    named: dict[str, list[str]] = defaultdict(list)
    for path in modules:
        named[path.stem].append(name_of(path.parent))
    shared = sorted(named.items(), key=lambda each: (-len(each[1]), each[0]))
    show("Names of several modules", (f"{len(where):4} {name}: {' '.join(where)}" for name, where in shared[:SHOWN]))
    folders = Counter(name_of(path.parent) for path in modules)
    show("Fullest folders", (f"{count:4} {folder}" for folder, count in folders.most_common(SHOWN)))
    show("Rooms and floors", floors())


if __name__ == "__main__":
    main()
