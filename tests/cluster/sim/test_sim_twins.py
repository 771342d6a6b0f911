"""Requests with the same identity: each is answered once, with the outcome of the one message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftlog.types import Role
from raftmq_wire.message_format import decode_message
from tests.cluster.sim.test_sim_proposals import (
    OK,
    REFUSED,
    UNKNOWN,
    answered,
    ask,
    hold_disks,
    lose_leadership,
    release_disks,
    stored,
)
from tests.support.sim_cluster import ClientPath, SimCluster, codes

SEED = 23
SAME: dict[str, Any] = {"key": "K", "pid": bytes(range(16)), "seq": 1, "low": 1}


def at_rest(sim: SimCluster, *paths: ClientPath) -> None:
    assert [path.in_flight.bytes for path in paths] == [0] * len(paths)
    assert {node.proposals.gate.sends.bytes for node in sim.running} == {0}


def test_proposed_and_queued_ones_are_all_answered(sim_of: Any) -> None:
    sim = sim_of(**{"limits.batches_inflight_max": 1})
    leader = sim.leader()
    hold_disks(sim.followers())
    path, other = leader.connect(), leader.connect()
    ask(path, b"x", **SAME)
    sim.loop.run_for(0.05)
    ask(path, b"y", first=1, **SAME | {"seq": 2})
    ask(path, b"x", first=2, **SAME)
    ask(other, b"x", first=3, **SAME)
    ask(other, b"y", first=4, **SAME | {"seq": 2})
    release_disks(sim.followers())
    assert answered(sim, path, 3) == [[OK]] * 3
    assert answered(sim, other, 2) == [[OK]] * 2
    assert path.replies[0][0][2] == path.replies[2][0][2] == other.replies[3][0][2], "the same place"
    assert stored(sim) == [b"x", b"y"]
    at_rest(sim, path, other)


def test_through_a_follower(sim_of: Any) -> None:
    sim = sim_of()
    leader, through = sim.leader(), sim.followers()[0]
    hold_disks(sim.followers())
    path = through.connect()
    ask(path, b"x", b"x", b"x", **SAME)
    sim.loop.run_until(lambda: leader.proposals.gate.sends.bytes, 5)
    release_disks(sim.followers())
    assert answered(sim, path, 3) == [[OK]] * 3
    assert stored(sim) == [b"x"]
    at_rest(sim, path)


def test_undecided_ones_are_all_told_so(sim_of: Any) -> None:
    sim = sim_of()
    leader = sim.leader()
    hold_disks(sim.followers())
    path = leader.connect()
    ask(path, b"x", b"x", **SAME)
    assert answered(sim, path, 2) == [[UNKNOWN]] * 2
    ask(path, b"x", first=2, **SAME)
    release_disks(sim.followers())
    assert answered(sim, path, 3) == [[UNKNOWN], [UNKNOWN], [OK]]
    assert stored(sim) == [b"x"]
    at_rest(sim, path)


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("gone", ["closed", "told that it is unknown"])
def test_a_repeat_that_asks_for_another_queue_is_told_where_the_message_is(
    sim_of: Any, gone: str, queued: bool
) -> None:
    """The first needs no answer any more, and the log has not decided."""
    sim = sim_of(**{"limits.batches_inflight_max": 1})
    leader = sim.leader()
    hold_disks(sim.followers())
    first, other = leader.connect(), leader.connect()
    if queued:
        ask(leader.connect(), b"before")
        sim.loop.run_for(0.01)
    ask(first, b"x", queue_id=0, **SAME)
    sim.loop.run_for(0.05)
    if gone == "closed":
        first.close()
    else:
        answered(sim, first, 1)
    ask(other, b"x", queue_id=1, **SAME)
    release_disks(sim.followers())
    assert answered(sim, other, 1) == [[OK]]
    fields = json.loads(other.replies[0][0][2])
    (stored,) = [
        (queue_id, item.queue_offset)
        for queue_id in range(leader.state.topics["T"].queues)
        for item in leader.state.fetch(leader.state.topics["T"].id, queue_id, 0, 10)
        if decode_message(leader.log.read_at(item.position, item.size))[0].body == b"x"
    ]
    assert (int(fields["queueId"]), int(fields["queueOffset"])) == stored


def test_lost_ones_are_all_refused(sim_of: Any) -> None:
    sim = sim_of(**{"send.deadline_ms": 20_000})
    old = sim.leader()
    sim.isolate(old)
    path = old.connect()
    ask(path, b"x", b"x", **SAME)
    sim.loop.run_for(0.01)
    other = sim.leader(besides=old).connect()
    ask(other, b"kept")
    answered(sim, other, 1)
    sim.mend()
    assert answered(sim, path, 2) == [[REFUSED]] * 2
    assert stored(sim) == [b"kept"]
    at_rest(sim, path)


def test_queued_ones_go_to_the_next_leader_together(sim_of: Any) -> None:
    sim = sim_of(**{"limits.batches_inflight_max": 1, "send.deadline_ms": 20_000, "send.leader_wait_ms": 20_000})
    old = sim.leader()
    hold_disks(sim.followers())
    path = old.connect()
    ask(path, b"first")
    sim.loop.run_for(0.01)
    ask(path, b"x", b"x", first=1, **SAME)
    lose_leadership(sim, old)
    assert old.raw.role is not Role.LEADER
    sim.heal()
    assert answered(sim, path, 3)[1:] == [[OK]] * 2
    assert stored(sim).count(b"x") == 1
    at_rest(sim, path)


def test_without_room_the_first_is_unknown_and_the_last_waits(sim_of: Any) -> None:
    """Repeating one send a thousand times takes the memory of a few."""
    limits = {f"limits.{name}_inflight_bytes_max": 1 << 20 for name in ("connection", "node")}
    sim = sim_of(**limits, **{"limits.frame_bytes_max": 1 << 20, "limits.message_bytes_max": 1 << 18})
    leader = sim.leader()
    hold_disks(sim.followers())
    path = leader.connect()
    ask(path, *[bytes(200_000)] * 20, **SAME)
    assert leader.proposals.gate.sends.bytes < 2 << 20
    release_disks(sim.followers())
    answers = answered(sim, path, 20)
    assert answers.count([OK]) >= 2
    assert all(codes in ([OK], [UNKNOWN]) for codes in answers)
    assert codes(path, 19) == [OK]
    assert stored(sim) == [bytes(200_000)]
    at_rest(sim, path)
