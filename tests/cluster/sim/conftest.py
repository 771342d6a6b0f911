"""`sim_of`: simulated clusters for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.sim_cluster import SimCluster


@pytest.fixture
def sim_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., SimCluster]]:
    """Makes a cluster with topic T from the module's SEED, or SIM_SEED; closed after the test."""
    with ExitStack() as made:

        def make(**overrides: Any) -> SimCluster:
            sim = made.enter_context(SimCluster(int(os.environ.get("SIM_SEED", request.module.SEED)), **overrides))
            sim.create_topic("T")
            return sim

        yield make
