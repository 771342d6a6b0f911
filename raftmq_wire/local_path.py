"""Checks that a path for a local file or folder is not a URL. As a path, `s3://bucket/x` would mean a folder named
`s3:` in the working directory."""

from __future__ import annotations

import os
import re

from raftmq_wire.errors import ExitCode, LocalError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""The beginning of a URL. One slash is enough, because `Path("s3://bucket")` keeps only one."""


def check_local(value: str | os.PathLike[str], name: str = "a path") -> None:
    """Raises LocalError if `value` is a URL. `name`: the option or argument that has the path, for the error's text."""
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
