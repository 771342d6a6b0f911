"""The measurements of each bug by longer runs than the matrix: `recorded.toml`, one line per bug.

    C12 = { unit_tests = "pass", calm = "", random = [20, 48], black_box = [0, 260], clients = "lost-ack" }

A field that is absent was not measured. `raftmq sim bugs --unit-tests` and `--calm` measure two of them again and say
where the record is wrong.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

RECORD = Path(__file__).resolve().parent / "recorded.toml"
PASS = "pass"


class KillRate(NamedTuple):
    """Kills among random seeds."""

    kills: int
    seeds: int


class Recorded(NamedTuple):
    """None: not measured."""

    unit_tests: str | None = None
    """PASS, or how many of the touched layer's tests notice it, like "3 fail"."""
    calm: str | None = None
    """Checker that fires in 1,000 operations without a fault or with one crash; "" if none does."""
    random: KillRate | None = None
    """Kill rate by the checkers that the bug names."""
    black_box: KillRate | None = None
    """Kill rate by what clients see alone."""
    clients: str | None = None
    """Checker that fires in its schedule when only what clients see may fire; "" if none does."""


NOTHING = Recorded()


def load(path: Path = RECORD) -> dict[str, Recorded]:
    """Reads the record, by the bug's id. Raises ValueError for an unknown field, or a value of another shape."""
    return {name: _recorded(name, fields) for name, fields in tomllib.loads(path.read_text()).items()}


def _recorded(name: str, fields: dict[str, Any]) -> Recorded:
    unknown = fields.keys() - set(Recorded._fields)
    texts = [fields.get("unit_tests"), fields.get("calm"), fields.get("clients")]
    pairs = [fields.get("random"), fields.get("black_box")]
    if unknown or not all(isinstance(text, str | None) for text in texts):
        raise ValueError(
            f"{name}: {', '.join(sorted(unknown)) or 'unit_tests, calm, clients'}: {' and '.join(Recorded._fields)}"
        )
    for pair in pairs:
        if pair is not None and not (len(pair) == 2 and 0 <= pair[0] <= pair[1]):
            raise ValueError(f"{name}: {pair} is not [kills, seeds]")
    random, black_box = (None if pair is None else KillRate(*pair) for pair in pairs)
    return Recorded(fields.get("unit_tests"), fields.get("calm"), random, black_box, fields.get("clients"))
