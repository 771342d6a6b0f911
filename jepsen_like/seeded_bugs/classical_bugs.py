"""The classical bugs of replicated logs, read from `classics.toml`, and the planted bugs that are of each kind."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

CLASSICS = Path(__file__).resolve().parent / "classics.toml"


class Classic(NamedTuple):
    """One classical bug."""

    id: str
    title: str
    bugs: tuple[str, ...]
    """Ids of the planted bugs of this kind; if empty, `why` gives the reason."""
    why: str


def load(path: Path = CLASSICS) -> list[Classic]:
    """Reads the classical bugs in the file's order. Raises ValueError for one that has neither planted bugs nor a
    reason, or both."""
    found = []
    for name, fields in tomllib.loads(path.read_text()).items():
        classic = Classic(name, fields["title"], tuple(fields["bugs"]), fields.get("why", ""))
        if bool(classic.bugs) == bool(classic.why):
            raise ValueError(f"{name}: either `bugs` or the reason `why` there are none")
        found.append(classic)
    return found


def planted() -> frozenset[str]:
    """Returns the ids of all planted bugs that are of a classical kind."""
    return frozenset(bug for classic in load() for bug in classic.bugs)
