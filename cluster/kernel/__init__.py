"""The hot path twice: compiled (`_native.pyx`), and in Python (`_python.py`) for where there is no compiler.

One of them is chosen when this package is imported. Callers take its functions from here and cannot tell which it is.
Both work on bytes and numbers alone: they know no connection, clock or loop.
"""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from cluster.kernel import _python

VARIABLE = "RAFTMQ_KERNEL"
"""Environment variable: `python` takes the Python kernel although there is a native one."""


class Kernel(Protocol):
    """What both modules have; mypy compares both with it."""

    VERSION: int

    def frames(self, data: bytes, limit: int) -> tuple[list[tuple[int, int]], int, int | None]:
        """See `_python.frames`."""


class Choice(NamedTuple):
    """The kernel to use."""

    name: Literal["native", "python"]
    why: str
    """Why not the native one; empty if it is."""
    module: Kernel


def choose() -> Choice:
    """The native kernel, unless RAFTMQ_KERNEL=python or it cannot be used."""
    if os.environ.get(VARIABLE) == "python":
        return Choice("python", f"{VARIABLE}=python", _python)
    try:
        return Choice("native", "", native())
    except ImportError as error:
        return Choice("python", str(error), _python)


def native() -> Kernel:
    """The native kernel. Raises ImportError, whose text says why it cannot be used: it was not built, does not load, or
    was built from another tree."""
    try:
        from cluster.kernel import _native
    except ImportError as error:
        raise ImportError(_not_imported(error)) from error
    if _native.VERSION != _python.VERSION:
        text = f"the native kernel has version {_native.VERSION}, the Python kernel {_python.VERSION}: run make setup"
        raise ImportError(text)
    source = Path(__file__).with_name("_native.pyx")  # not in a wheel, whose parts come from one build
    if source.exists() and hashlib.sha256(source.read_bytes()).hexdigest() != _native.SOURCE:
        raise ImportError("the native kernel was built from another _native.pyx: run make setup")
    return _native


def _not_imported(error: ImportError) -> str:
    built = list(Path(__file__).parent.glob("_native.*.so"))
    if not built:
        return "the native kernel was not built; `make setup` builds it, or says what it lacks"
    if {path.name for path in built} & {f"_native{suffix}" for suffix in EXTENSION_SUFFIXES}:
        return f"the native kernel does not load ({error}): run make setup"
    return f"the native kernel was built for another Python ({built[0].name}): run make setup"


NAME, WHY, _kernel = choose()
VERSION = _kernel.VERSION

frames = _kernel.frames
