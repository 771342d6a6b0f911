"""The classical bugs of replicated logs, `classics.toml`: which of the planted ones are of such a kind."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

CLASSICS = Path(__file__).resolve().parent / "classics.toml"


class Classic(NamedTuple):
    """A classical bug."""

    id: str
    title: str
    bugs: tuple[str, ...]
    """Planted bugs of this kind; none: `why` tells the reason."""
    why: str


def load(path: Path = CLASSICS) -> list[Classic]:
    """Reads the classics in the file's order. Raises ValueError for one without bugs and without a reason, or with
    both.
    """
    found = []
    for name, fields in tomllib.loads(path.read_text()).items():
        classic = Classic(name, fields["title"], tuple(fields["bugs"]), fields.get("why", ""))
        if bool(classic.bugs) == bool(classic.why):
            raise ValueError(f"{name}: either `bugs` or the reason `why` there are none")
        found.append(classic)
    return found


def planted() -> frozenset[str]:
    """Ids of all bugs that are of such a kind."""
    return frozenset(bug for classic in load() for bug in classic.bugs)
