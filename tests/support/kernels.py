"""The native kernel and its twins beside each other, for tests that run both."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import cluster
from raftmq_wire import kernel
from tests.support.tools import is_here, lack


class Pair(NamedTuple):
    """One name of the kernel: whatever goes in, the same comes out of both."""

    native: Any
    python: Any


def native_kernel() -> ModuleType:
    """It may be missing only where it cannot be built: then the test is skipped."""
    try:
        return kernel.native()
    except ImportError as error:
        if is_here("compiler"):
            pytest.fail(str(error))
        lack("compiler", why="the native kernel is not tested")


@functools.cache
def twins() -> dict[str, Any]:
    """All twins, by name: every module that may have one is imported."""
    for module in pkgutil.walk_packages(cluster.__path__, "cluster."):
        importlib.import_module(module.name)
    importlib.import_module("raftmq.arrow.properties")  # the one twin above `cluster`
    return dict(kernel.TWINS)
