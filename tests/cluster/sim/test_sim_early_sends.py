"""Sends that reach a new leader before its writes are open: their number of bytes is bounded, and their order kept."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.runtime.peer_frames import Kind
from tests.cluster.sim.test_sim_proposals import OK, answered, ask, hold_disks, release_disks, stored
from tests.support.sim_cluster import codes, send_frame

SEED = 24
PID = b"\x0c" * 16
BUSY = 2
SIZES = 500, 900, 100


def test_a_send_without_room_is_refused_and_not_stored_behind_a_later_one(sim_of: Any) -> None:
    """It went back to the node that holds it once, which sent it again behind those that had found room: the client
    saw no refusal, and its second message stood behind the third (seed 762000023)."""
    sim = sim_of()
    leader, through = sim.leader(), sim.followers()[0]
    sim.begin_term(leader)
    path = through.connect()
    gate, config = leader.forwarder.gate, leader.running.config
    gate.reload(replace(config, limits=replace(config.limits, node_inflight_bytes_max=1500)))
    for number, size in enumerate(SIZES, 1):
        path.ask(send_frame(number, "T", b"%d " % number + bytes(size)))
    sim.loop.run_for(0.1)
    assert gate.early.bytes > sum(SIZES) - SIZES[1]
    gate.reload(config)
    leader.apply.release()
    sim.loop.run_until(lambda: path.replies.keys() >= {1, 2, 3}, 5)
    assert [codes(path, number) for number in (1, 2, 3)] == [[0], [BUSY], [0]]
    assert "limits.node_inflight_bytes_max = 1500" in path.replies[2][0][1]
    assert (leader.refused, through.refused) == ({"busy": 1}, {})
    sim.settle()
    assert [body[:1] for body in leader.bodies("T")] == [b"1", b"3"]
    assert gate.early.bytes == through.forwarder.gate.forwarded.bytes == 0


@pytest.mark.parametrize("handled", [0, 1], ids=["both wait", "the second waits"])
def test_all_that_a_client_has_sent_early_goes_together(sim_of: Any, handled: int) -> None:
    """The kind of seed 970000031: the leader hears that nobody waits for the first send any more, then come both once
    more over their client's next connection, and then that nobody waits for the second."""
    sim = sim_of(**{"limits.batches_inflight_max": 1})
    leader, through = sim.leader(), sim.followers()[0]
    hold_disks(sim.followers())
    first, again = leader.connect(), leader.connect()
    ask(first, b"first")
    sim.loop.run_for(0.01)
    gone, other = through.connect(), through.connect(4001)
    early = leader.forwarder.gate.early
    with ExitStack() as until_then:
        for number, body in enumerate((b"a", b"b"), 1):
            if number == handled + 1:
                until_then.enter_context(sim.unlinked(leader, through))
            ask(gone, body, first=number, pid=PID, seq=number, low=1)
            sim.loop.run_for(0.01)
        ask(other, b"c")
        ask(gone, b"quiet", first=7, oneway=True)
        sim.loop.run_until(lambda: early.requests == 4, 0.2)
        forwarded = list(through.forwarded)
        until_then.enter_context(through.mute())
        gone.close()
        sim.loop.run_for(0.02)
        leader.run(leader.forwarder.on_frame, through.node_id, Kind.FORWARD, forwarded[:1], b"")
        sim.loop.run_for(0.01)
    sim.loop.run_until(lambda: not early.requests, 2, "there is a way back")
    for number, body in enumerate((b"a", b"b"), 1):
        ask(again, body, first=number, pid=PID, seq=number, low=1)
    leader.run(leader.forwarder.on_frame, through.node_id, Kind.FORWARD, forwarded[1:2], b"")
    release_disks(sim.followers())
    assert answered(sim, again, 2) == [[OK], [OK]]
    assert not leader.proposals.gate.left()
    bodies = stored(sim)
    assert [body for body in bodies if body in (b"a", b"b")] == [b"a", b"b"]
    assert sorted(bodies) == [b"a", b"b", b"c", b"first", b"quiet"]
