"""The check of the order of sends knows all that nodes refused for now, whoever refused it and whoever heard of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from jepsen_like.sim.checks.refused_sends import Refusals
from jepsen_like.sim.clients.client_machines import OWN_ID
from tests.support.sim_cluster import SimCluster, send_frame

LARGE = b"own1-2 " + bytes(4000)


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(17) as made:
        made.create_topic("T")
        made.settle()
        yield made


@pytest.mark.parametrize("leads", [True, False])
def test_a_refusal_that_nobody_heard_counts(sim: SimCluster, monkeypatch: pytest.MonkeyPatch, leads: bool) -> None:
    """The client had gone to another connection before a leader that had stood still refused one of its sends, took the
    next, and found the first again behind it (seed 831001115)."""
    node = sim.leader() if leads else sim.followers()[0]
    refusals = Refusals(OWN_ID)
    for each in sim.running:
        refusals.watch(each.running)
    gate: Any = node.proposals.gate
    monkeypatch.setattr(gate, "_limits", replace(gate._limits, node_inflight_bytes_max=3000))
    path = node.connect()
    path.ask(send_frame(1, "T", b"own1-1"))
    path.ask(send_frame(2, "T", LARGE))
    path.close()
    path.ask(send_frame(3, "T", b"own1-3"))
    sim.settle()
    assert refusals.ids == {"own1-2"}


def test_what_was_never_made_a_send_counts(sim: SimCluster) -> None:
    refusals = Refusals(OWN_ID)
    leader = sim.leader()
    refusals.watch(leader.running)
    path = leader.connect()
    path.ask(send_frame(1, "T", b"own1-7", queue_id=99))
    sim.loop.run_until(lambda: path.replies, 5)
    assert refusals.ids == {"own1-7"}
