"""Sends that reach a new leader before its writes are open: their number of bytes is bounded, and their order kept."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.sim_cluster import codes, send_frame

SEED = 24
BUSY = 2
SIZES = 500, 900, 100


def test_a_send_without_room_is_refused_and_not_stored_behind_a_later_one(
    sim_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went back to the node that holds it once, which sent it again behind those that had found room: the client
    saw no refusal, and its second message stood behind the third (seed 762000023)."""
    sim = sim_of()
    leader, through = sim.leader(), sim.followers()[0]
    path = through.connect()
    forwarder = leader.forwarder
    with monkeypatch.context() as patch:
        patch.setattr(forwarder, "_leads", lambda: False)
        patch.setattr(forwarder.gate, "_limits", replace(forwarder.gate._limits, node_inflight_bytes_max=1500))
        for number, size in enumerate(SIZES, 1):
            path.ask(send_frame(number, "T", b"%d " % number + bytes(size)))
        sim.loop.run_for(0.1)
        assert forwarder.gate.early.bytes > sum(SIZES) - SIZES[1]
    sim.loop.run_until(lambda: path.replies.keys() >= {1, 2, 3}, 5)
    assert [codes(path, number) for number in (1, 2, 3)] == [[0], [BUSY], [0]]
    assert "limits.node_inflight_bytes_max = 1500" in path.replies[2][0][1]
    assert (leader.refused, through.refused) == ({"busy": 1}, {})
    sim.settle()
    assert [body[:1] for body in leader.bodies("T")] == [b"1", b"3"]
    assert forwarder.gate.early.bytes == through.forwarder.gate.forwarded.bytes == 0
