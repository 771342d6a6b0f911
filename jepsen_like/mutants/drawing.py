"""Which mutants there are, and the order in which a seed draws them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code

from jepsen_like.mutants.operators import operators

ROOTS = ("raftlog", "statemachine")
REPLICATION = (
    "cluster/replication",
    "cluster/runtime/lanes.py",
    "cluster/peer",
    "cluster/repair/fetch.py",
    "cluster/remoting/forward.py",
    "cluster/broker/sends.py",
)
"""From a checked send to the majority's disks and back: what replicates, beside the core."""


class Site(NamedTuple):
    """A place in a file that one or more operators can change."""

    file: str
    line: int
    """From 1."""
    column: int


class Mutant(NamedTuple):
    """One change. Two commits give the same mutants only where the files are the same."""

    site: Site
    operator: str
    occurrence: int
    """Among the operator's places in the file."""

    @property
    def name(self) -> str:
        """For people, and unique in a commit."""
        return f"{self.site.file}:{self.site.line}:{self.site.column} {self.operator}#{self.occurrence}"

    def applied(self, text: str) -> str:
        """The file's text with the change in it. Raises ValueError if the text is not the one that was drawn from."""
        mutated = mutate_code(text, operators()[self.operator], self.occurrence)
        if mutated is None or mutated == text:
            raise ValueError(f"{self.name} changes nothing")
        return str(mutated)


class _Collector(Visitor):  # type: ignore[misc]  # the library has no types
    """Notes every position of each operator, in the order in which Cosmic Ray counts them."""

    def __init__(self) -> None:
        self._operators = operators()
        self.starts: dict[str, list[tuple[int, int]]] = {name: [] for name in self._operators}

    def visit(self, node: Any) -> Any:
        for name, operator in self._operators.items():
            self.starts[name] += [start for start, _ in operator.mutation_positions(node)]
        return node


def files(root: Path) -> list[str]:
    """The Python files that are mutated, relative to `root`, which holds the packages."""
    found: list[str] = []
    for name in (*ROOTS, *REPLICATION):
        path = root / name
        found += [str(file.relative_to(root)) for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return found


@cache
def _of_file(root: Path, file: str) -> dict[Site, list[Mutant]]:
    found: dict[Site, list[Mutant]] = defaultdict(list)
    collector = _Collector()
    collector.walk(get_ast((root / file).read_text()))
    for name, starts in collector.starts.items():
        for occurrence, (line, column) in enumerate(starts):
            site = Site(file, line, column)
            found[site].append(Mutant(site, name, occurrence))
    return found


def drawn(root: Path, seed: int, only: Sequence[str] = ()) -> Iterator[Mutant]:
    """Every site once, in an order that hangs on the seed, with one of its changes. `only`: these files.

    Sites are drawn, not mutants: a comparison has nine changes and would come nine times as often.
    """
    chance = random.Random(seed)
    places = {file: _of_file(root, file) for file in files(root) if not only or file in only}
    sites = [site for of_file in places.values() for site in sorted(of_file)]
    chance.shuffle(sites)
    for site in sites:
        yield chance.choice(places[site.file][site])
