"""What a test needs to run a function of both kernels."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from cluster import kernel
from cluster.kernel import Kernel, _python

ROOT = Path(__file__).parents[2]


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


def kernel_named(name: str) -> Kernel:
    """The native one may be missing only where it cannot be built: then the test is skipped."""
    if name == "python":
        return _python
    try:
        return kernel.native()
    except ImportError as error:
        if can_compile():
            pytest.fail(str(error))
        pytest.skip(f"{setup_script().missing()}: the native kernel is not tested")
