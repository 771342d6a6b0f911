"""The request codes that a node serves, as its parts register them."""

from __future__ import annotations

from functools import cache

from cluster.remoting.request_rights import Codes
from cluster.runtime.service_lifecycle import codes_of
from tests.support.sim_cluster import SimCluster


@cache
def served_codes() -> Codes:
    """Request code -> what serves it, and the rights that it needs."""
    with SimCluster(1) as sim:
        return codes_of(sim.leader().running.remoting.serving)
