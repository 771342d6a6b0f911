"""Three local nodes for a benchmark, and loads on them that count only if no send was refused."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from load import Result, run

from cluster.config.local_layout import NodeRecord
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port

BODY_BYTES = 1024


@contextmanager
def three_nodes() -> Iterator[tuple[LocalCluster, NodeRecord]]:
    """Yields a cluster in a temporary folder, and its leader. The cluster ends with the block."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as folder:
        cluster = LocalCluster(Path(folder) / "data")
        cluster.up(3, base_port=free_base_port(12))
        try:
            yield cluster, leader_of(cluster)
        finally:
            cluster.down()


def leader_of(cluster: LocalCluster) -> NodeRecord:
    """Returns the leader's record."""
    leader = cluster.wait_leader()
    return next(node for node in cluster.nodes if node.id == leader)


def load(
    port: int,
    in_flight: int,
    seconds: float,
    *,
    topic: str = "bench",
    size: int = BODY_BYTES,
    batch: int = 1,
    queues: int = 4,
    connections: int = 1,
) -> Result:
    """Runs one load on a node. Ends the benchmark if a send is refused."""
    result = run(
        "127.0.0.1",
        port,
        topic=topic,
        size=size,
        batch=batch,
        in_flight=in_flight,
        seconds=seconds,
        queues=queues,
        connections=connections,
    )
    if result.errors:
        raise SystemExit(f"{result.errors} sends were refused: nothing was measured")
    return result
