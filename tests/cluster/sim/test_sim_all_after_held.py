"""A repetition at level `all` of a send whose entry was held back: the core has not learnt yet that it is applied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.replication.acks.ack_levels import Ack
from raftlog.types import Role
from tests.cluster.sim.test_sim_calls import LOOPBACK_S, Producer
from tests.support.kernels import native_kernel
from tests.support.sim_cluster import SimCluster


def test_a_repetition_at_level_all_waits_for_the_voter_that_lacks_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    native_kernel()
    with SimCluster(7, segment_size=1 << 24, inline=1.0, latency_s=LOOPBACK_S) as sim:
        leader = sim.leader()
        sim.create_topic("bench", 4)
        producer = Producer(sim)
        producer.send(1)  # begins the connection's session
        sim.loop.run_for(0.1)
        away = next(node for node in sim.nodes.values() if node.running.raw.role is not Role.LEADER)
        sim.isolate(away)
        producer.send(1)
        raw, early = leader.running.raw, leader.early
        assert raw.applied_index < raw.commit_index, "the entry is held back; otherwise this tests nothing"
        answered: list[tuple[int, ...]] = []
        monkeypatch.setattr(early._replies, "stored_before", lambda send, *found: answered.append(found))
        send = SimpleNamespace(
            ack=Ack.ALL,
            size=1,
            received_ms=int(1000 * sim.loop.now),
            connection=SimpleNamespace(in_flight=None),
            hold=None,
        )

        def repeat() -> None:
            leader.running.serving.services.catch_up()
            assert leader.state.applied.index == raw.commit_index > raw.applied_index, (
                "the core learns it in its next turn"
            )
            send.connection.in_flight = producer_account()
            early.answer_stored(cast(Any, send), 1, 0, 1, 1)

        def producer_account() -> Any:
            return next(iter(leader.running.serving.remoting.router.connections)).in_flight

        leader.run(repeat)
        assert answered == []
        sim.loop.run_for(0.05)
        assert answered == [], "a voter lacks the message"
        sim.mend()
        sim.loop.run_until(lambda: answered, 10.0)
        assert answered == [(1, 0, 1, 1)]
