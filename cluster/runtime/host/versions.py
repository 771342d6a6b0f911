"""Versions of the software that a node runs on."""

from __future__ import annotations

import functools
import platform
from importlib import metadata


@functools.cache
def versions() -> dict[str, str]:
    """Returns name -> version of RaftMQ, Python and the libraries that handle data."""
    found = {"python": platform.python_version()}
    for name in ("raftmq", "rocksdict", "uvloop", "msgspec", "msgpack", "zlib-ng"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
