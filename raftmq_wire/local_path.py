"""The check that a path of this machine is none of another kind: as a path, `s3://bucket/x` would be a folder named
`s3:` in the working directory."""

from __future__ import annotations

import os
import re

from raftmq_wire.errors import ExitCode, LocalError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""The beginning of a URL. One slash is enough: Path("s3://bucket") has lost the other one."""


def check_local(value: str | os.PathLike[str], name: str = "a path") -> None:
    """Raises LocalError if `value` is a URL. `name` says in the error what the path is for: an option, or an
    argument."""
    text = os.fspath(value)
    found = _SCHEME.match(text)
    if found is None:
        return
    path = text[found.end() :].lstrip("/") if found[1].lower() == "file" else "…"
    raise LocalError(
        f"{name} is a path on this machine, and {text} is a URL",
        f"it would become a folder named {found[1]}: in the working directory",
        f"write a path: /{path}",
        ExitCode.USAGE,
    )
