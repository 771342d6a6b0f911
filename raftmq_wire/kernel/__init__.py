"""The compiled hot path: each function or class in `_native.pyx` has a Python twin, which it replaces where the kernel
was built.

`@twin` marks the Python twins. They are the reference: for any input, twin and native version must return the same
bytes or raise the same error, and tests/raftmq_wire/kernel compares them. `@shortcut` marks functions and classes that
only the kernel implements. The Python version of a shortcut handles no request, so that ordinary Python code handles
all. The native version handles some requests, with the same results as that code. Without the compiled module, or with
RAFTMQ_KERNEL=python, the Python versions run.
"""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeVar

VERSION = 12
"""The version of the functions in `_native.pyx`. The native module contains it too, and is not used if its version is
another one."""
INSTEAD = "--no-binary raftmq raftmq"
"""Arguments of `pip install` that build the kernel from the source distribution with this machine's compiler. They are
for machines without a wheel that includes the kernel."""
VARIABLE = "RAFTMQ_KERNEL"
"""The environment variable that chooses the kernel. With the value `python`, the twins are used even if there is a
native module."""
TWINS: dict[str, Any] = {}
"""The Python twins by name, including replaced ones, of the modules imported so far."""
SHORTCUTS: dict[str, Any] = {}
"""The Python versions of shortcuts by name, including replaced ones, of the modules imported so far."""

_Twin = TypeVar("_Twin")


class Choice(NamedTuple):
    """The kernel that this process uses."""

    name: Literal["native", "python"]
    why: str
    """The reason why the native kernel is not used; "" if it is."""
    module: ModuleType | None
    """The native module; None if the Python twins are used."""


def choose() -> Choice:
    """Chooses the native kernel, unless RAFTMQ_KERNEL=python or it cannot be used."""
    if os.environ.get(VARIABLE) == "python":
        return Choice("python", f"{VARIABLE}=python", None)
    try:
        return Choice("native", "", native())
    except ImportError as error:
        return Choice("python", str(error), None)


def native() -> ModuleType:
    """Returns the native module. Raises ImportError, whose text says why it cannot be used: it was not built, does not
    load, or was built from another tree."""
    try:
        from raftmq_wire.kernel import _native
    except Exception as error:  # a module built from another tree may fail in any way
        raise ImportError(_not_imported(error)) from error
    if _native.VERSION != VERSION:
        raise ImportError(f"the native kernel has version {_native.VERSION}, not {VERSION}: {_again()}")
    source = Path(__file__).with_name("_native.pyx")  # a wheel has no source file; its modules come from one build
    if source.exists() and hashlib.sha256(source.read_bytes()).hexdigest() != _native.SOURCE:
        raise ImportError("the native kernel was built from another _native.pyx: run make setup")
    return _native


def _again() -> str:
    """Returns the command that builds or installs the kernel again, in a source tree or in a pip environment."""
    if Path(__file__).with_name("_native.pyx").exists():
        return "run make setup"
    return "pip install --force-reinstall --no-deps raftmq"


def _not_imported(error: Exception) -> str:
    built = list(Path(__file__).parent.glob("_native.*.so"))
    if not Path(__file__).with_name("_native.pyx").exists():
        found = f"for another Python ({built[0].name})" if built else "without the native kernel"
        again = "pip install --force-reinstall --no-deps"
        return (
            f"the installed wheel of raftmq is {found}: {again} {INSTEAD}, which builds the source distribution; from "
            f"a folder of wheels: {again} --no-index --find-links FOLDER raftmq, if one there is for this machine"
        )
    if not built:
        return "the native kernel was not built; `make setup` builds it, or says what it lacks"
    if {path.name for path in built} & {f"_native{suffix}" for suffix in EXTENSION_SUFFIXES}:
        return f"the native kernel does not load ({error}): run make setup"
    return f"the native kernel was built for another Python ({built[0].name}): run make setup"


NAME, WHY, _module = choose()


def twin(python: _Twin) -> _Twin:
    """Decorates the Python twin `python`, a function or class. Returns the native version of the same name if the
    native kernel is in use, else `python`."""
    return _replaced(TWINS, python)


def shortcut(python: _Twin) -> _Twin:
    """Decorates the Python version of a shortcut, which leaves all work to ordinary Python code. Returns the native
    version of the same name if the native kernel is in use, else `python`."""
    return _replaced(SHORTCUTS, python)


def _replaced(versions: dict[str, Any], python: _Twin) -> _Twin:
    name: str = python.__name__  # type: ignore[attr-defined]
    versions[name] = python
    if _module is None:
        return python
    replacement: _Twin = getattr(_module, name)
    return replacement
