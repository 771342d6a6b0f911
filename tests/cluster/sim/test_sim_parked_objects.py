"""A pull that waits in a long poll is no object that the garbage collector walks over: 100,000 may wait."""

from __future__ import annotations

import gc
from typing import Any

from raftmq_wire.codec import encode_frame
from tests.support.sim_cluster import SimCluster

PULLS = 120


def pull(opaque: int) -> bytes:
    """A pull of a queue's end that waits a minute, as a Java consumer writes it."""
    ext = {
        "consumerGroup": "g",
        "topic": "waited",
        "queueId": str(opaque % 4),
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "60000",
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
    }
    return encode_frame(11, opaque, 0, ext=ext)


def park(sim: SimCluster, path: Any, numbers: range) -> int:
    """Sends so many pulls; how many objects the collector sees once they wait."""
    node = sim.leader().node
    assert node is not None
    for number in numbers:
        path.ask(pull(number))
    sim.loop.run_until(lambda: node.serving.broker.pulls.long_polls.count == numbers.stop, 5, "all of them wait")
    gc.collect()
    return len(gc.get_objects())


def test_a_parked_pull_is_nothing_to_the_garbage_collector() -> None:
    with SimCluster(11) as sim:
        sim.leader()
        sim.create_topic("waited", 4)
        path = sim.leader().connect()
        few = park(sim, path, range(PULLS))
        many = park(sim, path, range(PULLS, 4 * PULLS))
        assert many - few < PULLS, f"{(many - few) / 3 / PULLS:.1f} objects for each pull that waits"
