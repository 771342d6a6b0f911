"""Judges whether the planted bugs prove enough (at least 50 must fulfil every column), and says what the others lack.

A bug counts if its schedule kills it by a checker that it names (kills: the checker reports a violation), the unit
tests of the touched layer pass with it, and no bug before it changes the same line. The others are extra: they are run,
they must be caught, and they prove less. Of those that count, certain shares must be found by random seeds and by what
clients see alone, and only few may die in a run without faults or with one crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jepsen_like.seeded_bugs import classical_bugs
from jepsen_like.seeded_bugs.calm_verdicts import CALM_MAX
from jepsen_like.seeded_bugs.catalogue import SOURCE_ROOT, Bug, patched
from jepsen_like.seeded_bugs.matrix import Row
from jepsen_like.seeded_bugs.recorded_results import NOTHING, PASS, KillRate, Recorded

COUNT_MIN, SOURCED_MIN = 50, 40
RANDOM_MIN, BLACK_BOX_MIN = 0.8, 2 / 3


class Standing(NamedTuple):
    """One bug judged against every column."""

    name: str
    line: tuple[str, int]
    """File and line number of the bug's first edit."""
    sourced: bool
    """True if the bug is of a classical kind (classical_bugs.py)."""
    lacks: tuple[str, ...]
    """Columns that the bug does not fulfil; if empty, the bug counts."""
    random: KillRate | None
    black_box: KillRate | None
    """Kill rate by random seeds when only what clients see may report; None if not measured."""
    clients: str | None
    """Checker that reports in the bug's schedule when only what clients see may report; None if none does."""
    calm: str | None

    def as_dict(self) -> dict[str, Any]:
        """Returns, for JSON, the columns that the rows of the matrix do not have."""
        return {
            "line": f"{self.line[0]}:{self.line[1]}",
            "lacks": self.lacks,
            "sourced": self.sourced,
            "black_box": self.black_box,
            "calm": self.calm,
        }


class Condition(NamedTuple):
    """One condition of the gate (the minimum that all bugs together must reach): whether it holds, and its text."""

    holds: bool
    text: str


def standings(bugs: Sequence[Bug], rows: Sequence[Row], recorded: Mapping[str, Recorded]) -> list[Standing]:
    """Returns the standing of each bug, in the order given. A rate that was measured now takes precedence over a
    recorded one."""
    found: list[Standing] = []
    taken: dict[tuple[str, int], str] = {}
    classical = classical_bugs.planted()
    for bug, row in zip(bugs, rows, strict=True):
        known, line = recorded.get(bug.id, NOTHING), line_of(bug)
        lacks = _lacks(row, known)
        if not lacks and line in taken:
            lacks = (f"the line is that of {taken[line]}",)
        if not lacks:
            taken[line] = bug.id
        random = KillRate(row.kills, row.seeds) if row.kills or known.random is None else known.random
        sourced = bug.id in classical
        found.append(Standing(bug.id, line, sourced, lacks, random, known.black_box, row.clients, known.calm))
    return found


def line_of(bug: Bug) -> tuple[str, int]:
    """Returns file and line number (from 1) of the bug's first edit. Raises BugError if the patch does not fit."""
    file = bug.edits[0].file
    before, after = (SOURCE_ROOT / file).read_text().splitlines(), patched(bug)[file].splitlines()
    pairs = enumerate(zip(before, after, strict=False), 1)
    return file, next((number for number, (old, new) in pairs if old != new), len(before))


def _lacks(row: Row, known: Recorded) -> tuple[str, ...]:
    lacks = []
    if not row.scheduled:
        lacks.append("its schedule does not kill it")
    if known.unit_tests is None:
        lacks.append("unit tests not measured")
    elif known.unit_tests != PASS:
        lacks.append(f"unit tests notice it: {known.unit_tests}")
    return tuple(lacks)


def conditions(found: Sequence[Standing]) -> list[Condition]:
    """Returns all conditions of the gate."""
    good = [standing for standing in found if not standing.lacks]
    count = len(good)
    lines = len({standing.line for standing in good})
    sourced = sum(standing.sourced for standing in good)
    random = sum(_kills(standing.random) > 0 for standing in good)
    clients = sum(bool(standing.clients) or _kills(standing.black_box) > 0 for standing in good)
    calm = sum(bool(standing.calm) for standing in found)
    unknown = sum(standing.calm is None for standing in good)
    told = (
        f"{count} of {len(found)} bugs fulfil every column, on {lines} different lines; {COUNT_MIN} wanted",
        f"{sourced} of them are of the classical list; {SOURCED_MIN} wanted",
        f"{random} of them die in random seeds, {_percent(random, count)}; {RANDOM_MIN:.0%} wanted",
        f"{clients} of them die by what clients see alone, {_percent(clients, count)}; two thirds wanted",
        f"{calm} of all die in a calm run, {unknown} were not measured; at most {CALM_MAX} may",
    )
    held = (
        lines >= COUNT_MIN,
        sourced >= SOURCED_MIN,
        random >= RANDOM_MIN * count,
        clients >= BLACK_BOX_MIN * count,
        calm + unknown <= CALM_MAX,
    )
    return list(map(Condition, held, told))


def _kills(found: KillRate | None) -> int:
    return 0 if found is None else found.kills


def _percent(part: int, count: int) -> str:
    return f"{part / count:.0%}" if count else "0%"


def lines(found: Sequence[Standing], *, judged: bool) -> list[str]:
    """Returns the lines of the report: recorded columns and what each bug lacks and, if `judged`, the conditions of the
    gate."""
    told = [
        "",
        "bug   random        black box     clients             calm                what it lacks",
        *map(_line, found),
    ]
    if judged:
        told += [
            "",
            *(f"{'ok    ' if condition.holds else 'MISSED'} {condition.text}" for condition in conditions(found)),
        ]
    return told


def _line(standing: Standing) -> str:
    calm = "not measured" if standing.calm is None else standing.calm or "-"
    return (
        f"{standing.name:5} {_rate(standing.random):13} {_rate(standing.black_box):13} "
        f"{standing.clients or '-':19} {calm:19} "
        f"{'; '.join(standing.lacks) or '-'}"
    )


def _rate(found: KillRate | None) -> str:
    return "not measured" if found is None else f"{found.kills} of {found.seeds}"
