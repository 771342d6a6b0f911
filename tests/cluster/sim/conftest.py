"""Makes the helpers beside the tests importable: `virtual_loop`, `sim_node`, `sim_cluster`. And clusters of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sim_cluster import SimCluster


@pytest.fixture
def sim_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., SimCluster]]:
    """Makes a cluster with topic T from the module's SEED, or SIM_SEED; closed after the test."""
    with ExitStack() as made:

        def make(**overrides: Any) -> SimCluster:
            sim = made.enter_context(SimCluster(int(os.environ.get("SIM_SEED", request.module.SEED)), **overrides))
            sim.create_topic("T")
            return sim

        yield make
