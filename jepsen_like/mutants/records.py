"""What was judged so far, one JSON line each, so that a long run can be taken up again; and why survivors may live."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from jepsen_like.mutants.judging import KILLED, NOT_COUNTED, SURVIVED, TIMED_OUT, Judgement

HARMLESS = Path(__file__).with_name("harmless.toml")


def load(path: Path) -> dict[str, Judgement]:
    """By name. A last line that was cut off is judged again. No file: nothing yet."""
    found: dict[str, Judgement] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        found[fields["name"]] = Judgement(**(fields | {"change": tuple(fields["change"])}))
    return found


def append(path: Path, judgement: Judgement) -> None:
    """Notes one more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(judgement._asdict()) + "\n")


def reasons(path: Path = HARMLESS) -> dict[tuple[str, tuple[str, ...]], str]:
    """(file, change) -> why that survivor changes nothing that anybody could notice."""
    rows = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    return {(row["file"], tuple(row["change"])): row["why"] for row in rows}


def summary(judgements: Iterable[Judgement]) -> list[str]:
    """Lines for people: every survivor with its reason, then the figures."""
    found = list(judgements)
    known = reasons()
    lines: list[str] = []
    unexplained = 0
    for judgement in found:
        if judgement.status in (SURVIVED, TIMED_OUT):
            why = known.get((judgement.file, judgement.change), "")
            unexplained += judgement.status == SURVIVED and not why
            lines += [f"{judgement.status}: {judgement.name}", *(f"    {line}" for line in judgement.change)]
            lines += [f"    harmless: {why}"] if why else []
    counts = Counter(judgement.status for judgement in found)
    judged = counts[KILLED] + counts[SURVIVED]
    by_simulator = sum(judgement.status == KILLED and " simulator: " in judgement.by for judgement in found)
    share = f"{100 * counts[KILLED] / judged:.0f} %" if judged else "-"
    lines.append(
        f"{judged} judged, {counts[KILLED]} killed ({share}; {by_simulator} by the simulator alone), "
        f"{counts[SURVIVED]} survived ({unexplained} without a reason), {counts[TIMED_OUT]} timed out, "
        f"{counts[NOT_COUNTED]} not counted (no import, no types, no change)"
    )
    return lines
