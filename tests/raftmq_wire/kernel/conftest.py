"""Both kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kernels import Pair, native_kernel, twins


@pytest.fixture(params=["native", "python"])
def each_kernel(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Kernel functions for examples with a known answer, which run with one kernel after the other:
    each_kernel("frames")."""
    return twins().__getitem__ if request.param == "python" else native_kernel().__getattribute__


@pytest.fixture(scope="session")
def both_kernels() -> Callable[[str], Pair]:
    """Both kernels' functions for a comparison: both_kernels("frames").

    Skipped where the native one cannot be built; a failure where it could be.
    """
    module = native_kernel()
    return lambda name: Pair(getattr(module, name), twins()[name])
