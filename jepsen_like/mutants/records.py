"""The record of a campaign: what was drawn, and what became of it, one JSON line each; and why survivors may live.

A mutant is known by its lines and the lines around them, not by their numbers, so that a record outlives edits
elsewhere in the file. What is on record for lines that are no longer there is not judged again.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RECORD = Path(__file__).with_name("record.jsonl")
HARMLESS = Path(__file__).with_name("harmless.toml")
DRAWN, KILLED, SURVIVED, TIMED_OUT, NOT_COUNTED = "drawn", "killed", "survived", "timed out", "not counted"
COUNTED = (KILLED, SURVIVED)
CONTEXT = 2
"""Lines kept on either side."""
Key = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Row(NamedTuple):
    """A mutant: `old`, which stands between `above` and `below` in `file`, becomes `new`. Whole lines."""

    file: str
    name: str
    """For people: where it was when it was drawn, and by which operator."""
    above: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    below: tuple[str, ...]
    status: str = DRAWN
    by: str = ""
    """Which test or checker noticed it, or why it does not count."""
    seconds: float = 0.0
    commit: str = ""
    """Where it was judged."""

    @property
    def key(self) -> Key:
        """Two rows with the same key are one mutant."""
        return (self.file, self.above, self.old, self.new, self.below)

    @property
    def change(self) -> tuple[str, ...]:
        """As in a diff: `- old`, `+ new`."""
        return (*(f"- {line.strip()}" for line in self.old), *(f"+ {line.strip()}" for line in self.new))

    def found_at(self, text: str) -> int | None:
        """Lines of the text above `old`; None if they are no longer there."""
        lines = text.split("\n")
        wanted = [*self.above, *self.old, *self.below]
        for at in range(len(lines) - len(wanted) + 1):
            if lines[at : at + len(wanted)] == wanted:
                return at + len(self.above)
        return None

    def applied(self, text: str) -> str | None:
        """The file's text with the change in it; None if its lines are no longer there."""
        begin = self.found_at(text)
        if begin is None:
            return None
        lines = text.split("\n")
        return "\n".join([*lines[:begin], *self.new, *lines[begin + len(self.old) :]])


def row_of(file: str, name: str, before: str, after: str) -> Row:
    """What makes `after` of `before`, two texts of `file` that differ in one place."""
    old, new = before.split("\n"), after.split("\n")
    first = last = 0
    while old[first] == new[first]:
        first += 1
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    end = len(old) - last
    return Row(
        file,
        name,
        tuple(old[max(0, first - CONTEXT) : first]),
        tuple(old[first:end]),
        tuple(new[first : len(new) - last]),
        tuple(old[end : end + CONTEXT]),
    )


def load(path: Path) -> dict[Key, Row]:
    """In the order in which they were drawn. No file: nothing yet."""
    rows: dict[Key, Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        fields: dict[str, Any] = json.loads(line)
        lines = {name: tuple(fields[name]) for name in ("above", "old", "new", "below")}
        row = Row(**(fields | lines))
        rows[row.key] = row
    return rows


def save(path: Path, rows: Iterable[Row]) -> None:
    """All of it, or, if it is interrupted, what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text("".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows))
    beside.replace(path)


def reasons(path: Path = HARMLESS) -> dict[tuple[str, tuple[str, ...]], str]:
    """(file, change) -> why that survivor changes nothing that anybody could notice."""
    rows = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    return {(row["file"], tuple(row["change"])): row["why"] for row in rows}


def answer(row: Row, root: Path, known: dict[tuple[str, tuple[str, ...]], str]) -> str:
    """Why it may live, "" if there is no reason."""
    path = root / row.file
    if not path.exists() or row.applied(path.read_text()) is None:
        return "its lines are no longer there"
    why = known.get((row.file, row.change), "")
    return f"harmless: {why}" if why else ""


def summary(rows: Sequence[Row], root: Path) -> list[str]:
    """Lines for people: every survivor with its reason, then the figures."""
    known = reasons()
    lines: list[str] = []
    unexplained = 0
    for row in rows:
        if row.status in (SURVIVED, TIMED_OUT):
            why = answer(row, root, known)
            unexplained += row.status == SURVIVED and not why
            lines += [f"{row.status}: {row.name}", *(f"    {line}" for line in row.change)]
            lines += [f"    {why}"] if why else []
    counts = Counter(row.status for row in rows)
    judged = counts[KILLED] + counts[SURVIVED]
    by_simulator = sum(row.status == KILLED and " simulator: " in row.by for row in rows)
    share = f"{100 * counts[KILLED] / judged:.0f} %" if judged else "-"
    lines.append(
        f"{judged} judged, {counts[KILLED]} killed ({share}; {by_simulator} by the simulator alone), "
        f"{counts[SURVIVED]} survived ({unexplained} without a reason), {counts[TIMED_OUT]} timed out, "
        f"{counts[NOT_COUNTED]} not counted (no import, no types, no change), {counts[DRAWN]} left"
    )
    return lines
