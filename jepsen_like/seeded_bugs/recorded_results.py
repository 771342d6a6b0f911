"""The results of longer runs than the matrix for each bug: `recorded.toml`, one line per bug.

    C12 = { unit_tests = "pass", calm = "", random = [20, 48], black_box = [0, 260], clients = "lost-ack" }

A field that is absent was not measured. `raftmq sim bugs --unit-tests` and `--calm` measure two of them again and
report differences from the record.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

RECORD = Path(__file__).resolve().parent / "recorded.toml"
PASS = "pass"


class KillRate(NamedTuple):
    """Number of kills, and number of random seeds tried."""

    kills: int
    seeds: int


class Recorded(NamedTuple):
    """The recorded results of one bug; None means that a field was not measured."""

    unit_tests: str | None = None
    """PASS, or the number of the touched layer's unit tests that fail, like "3 fail"."""
    calm: str | None = None
    """Checker that reports in 1,000 operations without a fault or with one crash; "" if none does."""
    random: KillRate | None = None
    """Kill rate by random seeds and the checkers that the bug names."""
    black_box: KillRate | None = None
    """Kill rate by random seeds when only what clients see may report."""
    clients: str | None = None
    """Checker that reports in the bug's schedule when only what clients see may report; "" if none does."""


NOTHING = Recorded()


def load(path: Path = RECORD) -> dict[str, Recorded]:
    """Reads the record; returns bug id -> results. Raises ValueError for an unknown field, or a value of another
    shape."""
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
