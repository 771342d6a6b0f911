"""Both kernels."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from cluster.kernel import Kernel
from tests.support.kernels import kernel_named


@pytest.fixture(params=["native", "python"])
def each_kernel(request: pytest.FixtureRequest) -> Kernel:
    """One after the other, for examples with a known answer."""
    return kernel_named(request.param)


class BothKernels(NamedTuple):
    """For a comparison: whatever goes in, the same comes out."""

    native: Kernel
    python: Kernel


@pytest.fixture(scope="session")
def both_kernels() -> BothKernels:
    """Skipped where the native one cannot be built; a failure where it could be."""
    return BothKernels(kernel_named("native"), kernel_named("python"))
