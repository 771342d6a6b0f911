"""A node that is dead for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.config.local_layout import NodeName, name_of
from raftlog.types import FIRST_GROUP
from raftmq.local.cluster import LocalCluster


def leader_of(live: LocalCluster, group: int = FIRST_GROUP) -> NodeName:
    """Returns the name of the node that leads a group, once one does."""
    return name_of(group, live.wait_leader(group=group))


@contextmanager
def killed(live: LocalCluster, name: NodeName) -> Iterator[float]:
    """kill -9 of the node; gives the time. In the end, whatever happened, it is back and its group is ready."""
    group = next(node.group for node in live.nodes if node.name == name)
    live.aim(name)()
    try:
        yield time.time()
    finally:
        live.restart(name)
        live.wait_ready(group=group)
