"""What a test needs to run the native kernel and its twins beside each other."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import cluster
from cluster import kernel

ROOT = Path(__file__).parents[2]


class Pair(NamedTuple):
    """One name of the kernel: whatever goes in, the same comes out of both."""

    native: Any
    python: Any


@functools.cache
def setup_script() -> ModuleType:
    """setup.py as a module; importing it builds nothing."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def can_compile() -> bool:
    """The native kernel can be built here."""
    return not setup_script().missing()


def native_kernel() -> ModuleType:
    """It may be missing only where it cannot be built: then the test is skipped."""
    try:
        return kernel.native()
    except ImportError as error:
        if can_compile():
            pytest.fail(str(error))
        pytest.skip(f"{setup_script().missing()}: the native kernel is not tested")


@functools.cache
def twins() -> dict[str, Any]:
    """All twins, by name: every module that may have one is imported."""
    for module in pkgutil.walk_packages(cluster.__path__, "cluster."):
        if not module.name.startswith("cluster.kernel."):
            importlib.import_module(module.name)
    importlib.import_module("raftmq.arrow.properties")  # the one twin above `cluster`
    return dict(kernel.TWINS)
