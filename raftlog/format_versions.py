"""The lowest number of all formats and levels, and the words with which an unknown format is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

BASELINE = 10
"""The number of every format on disk and on the wire in RaftMQ 0.1.0, and of the level of commands. Builds before 0.1.0
used lower ones, which nothing reads."""


def is_known(found: object, known: int) -> bool:
    """Returns True if this version reads the format `found`; `known` is the newest that it reads."""
    return type(found) is int and BASELINE <= found <= known


def why_unknown(what: Path | str, found: object, known: int) -> tuple[str, str, str]:
    """Returns three lines for people: what is refused, why, and what to do. `found`: the format that `what` names."""
    if type(found) is int and found > known:
        return (
            f"{what} has format {found}: a newer RaftMQ wrote it",
            f"this version reads formats up to {known} and would misread the data; nothing was changed",
            "use the newer version: pip install --upgrade raftmq",
        )
    return (
        f"{what} has format {found}: a build before RaftMQ 0.1.0 wrote it",
        f"formats begin at {BASELINE}, and no release reads earlier ones; nothing was changed",
        "read it with the build that wrote it, or begin with an empty directory (node.data_dir, or up --data DIR)",
    )


def why_above(what: Path | str, level: int, known: int) -> tuple[str, str, str]:
    """Returns three lines for people that refuse data, or a cluster, of a level that this version does not know.
    `level`: the level of the data; `known`: the newest level that this version knows (`statemachine.levels.LEVEL`)."""
    return (
        f"{what} has level {level}: a newer RaftMQ was finalized there",
        f"this version knows levels up to {known} and would misread it; nothing was changed",
        "use the newer version: pip install --upgrade 'raftmq[server]'",
    )


def refusal(what: Path | str, found: object, known: int) -> str:
    """Returns the three lines of `why_unknown` as one text."""
    return "\n".join(why_unknown(what, found, known))


def remark(what: str, found: object, known: int) -> str:
    """Returns the first two lines of `why_unknown` as one line, for use inside another message."""
    return "; ".join(why_unknown(what, found, known)[:2])


def uuid_in(value: Any) -> UUID:
    """Returns a field of a stored format as a UUID. Raises TypeError unless the field is bytes, ValueError unless it
    has 16. `UUID` alone would raise AssertionError for a wrong type."""
    if not isinstance(value, bytes):
        raise TypeError(f"a uuid is 16 bytes, not {value!r}")
    return UUID(bytes=value)
