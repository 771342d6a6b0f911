"""A node that is dead for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from raftmq.local.cluster import LocalCluster


@contextmanager
def killed(live: LocalCluster, node_id: int) -> Iterator[float]:
    """kill -9 of the node; gives the time. In the end, whatever happened, it is back and the cluster is ready."""
    live.aim(node_id)()
    try:
        yield time.time()
    finally:
        live.restart(node_id)
        live.wait_ready()
