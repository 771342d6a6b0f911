"""`python bench/bench_secured.py`: measures what TLS, signatures and rules cost three nodes.

Two clusters run side by side: one in plain text without users, and one that takes TLS alone, between nodes too, and
whose sends a user has signed that only its rules allow. ROUNDS (7) of SECONDS_PER_ROW (4) follow each other in turns,
IN_FLIGHT (512) sends of 1 KiB at a time. `nodes` and `client` are µs of CPU per message, medians of the rounds; `times`
is the median of the ratios within each round. With JSON=1 in the environment {"rows": [...]} alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from bench_cluster import cpu_seconds
from load import run
from tables import show
from three_nodes import BODY_BYTES, leader_of

import raftmq
from raftmq.client.tls import Tls
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.signature import Credentials

ROUNDS = int(os.environ.get("ROUNDS") or "7")
SECONDS = float(os.environ.get("SECONDS_PER_ROW") or "4")
IN_FLIGHT = int(os.environ.get("IN_FLIGHT") or "512")
TOPIC, NAME, SECRET = "bench", "bench", "the-secret-of-the-bench"


class Side(NamedTuple):
    """A cluster, and the way in which its client sends."""

    port: int
    pids: list[int]
    credentials: Credentials | None
    tls: Tls | None


class Cost(NamedTuple):
    """One round on one side: µs of CPU per message, and messages per second."""

    nodes: float
    client: float
    rate: float


def side(cluster: LocalCluster, *, secured: bool) -> Side:
    """Starts the cluster, and makes the topic and the user."""
    cluster.up(3, free_base_port(12), tls=secured, auth=secured)
    options = cluster.client_options
    with raftmq.connect(cluster.servers, **options) as client:
        client.admin.create_topic(TOPIC, queues=4)
        if secured:
            client.admin.create_user(NAME, SECRET)
            client.admin.set_rule(NAME, f"Topic:{TOPIC}", ["Pub"])
    pids = [node.pid for node in cluster.nodes if node.pid is not None]
    return Side(
        leader_of(cluster).broker_port,
        pids,
        Credentials(NAME, SECRET) if secured else None,
        options["tls"] or None,
    )


def measure(side: Side, seconds: float) -> Cost:
    """Runs one round."""
    nodes_s, client_s = cpu_seconds(side.pids), time.process_time()
    result = run(
        "127.0.0.1",
        side.port,
        topic=TOPIC,
        size=BODY_BYTES,
        batch=1,
        in_flight=IN_FLIGHT,
        seconds=seconds,
        credentials=side.credentials,
        tls=side.tls,
    )
    if result.errors or not result.messages:
        raise SystemExit(f"{result.errors} sends were refused: nothing was measured")
    each = 1e6 / result.messages
    return Cost(
        (cpu_seconds(side.pids) - nodes_s) * each,
        (time.process_time() - client_s) * each,
        result.messages / result.seconds,
    )


def main() -> None:
    """Starts both clusters in a temporary directory, measures them, and ends them."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-") as folder:
        clusters = [LocalCluster(Path(folder) / name) for name in ("plain", "secured")]
        try:
            plain, secured = (side(each, secured=number == 1) for number, each in enumerate(clusters))
            for each in (plain, secured):
                measure(each, 1.0)
            rounds = [(measure(plain, SECONDS), measure(secured, SECONDS)) for _ in range(ROUNDS)]
        finally:
            for each in clusters:
                each.down()
    rows = [
        {
            "": name,
            "nodes": round(statistics.median([pair[at].nodes for pair in rounds]), 1),
            "client": round(statistics.median([pair[at].client for pair in rounds]), 1),
            "messages_per_second": round(statistics.median([pair[at].rate for pair in rounds])),
            "times": round(statistics.median([pair[at].nodes / pair[0].nodes for pair in rounds]), 2),
            "from": round(min(pair[at].nodes / pair[0].nodes for pair in rounds), 2),
            "to": round(max(pair[at].nodes / pair[0].nodes for pair in rounds), 2),
        }
        for at, name in enumerate(("plain text, no users", "TLS, signed, enforced"))
    ]
    show(rows, f"three nodes, {IN_FLIGHT} in flight: µs of CPU per message of {BODY_BYTES} bytes")


if __name__ == "__main__":
    main()
