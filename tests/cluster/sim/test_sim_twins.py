"""Requests with the same identity: each is answered once, with the outcome of the one message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftlog.types import Role
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import BatchItem, build_batch, decode_message
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


def batch_frame(opaque: int, *messages: tuple[str, bytes]) -> bytes:
    """A batch (code 320) of messages with these keys and bodies, for a topic with strict dedup."""
    items = [BatchItem(0, body, f"UNIQ_KEY\x01{key}\x02".encode() if key else b"") for key, body in messages]
    ext = {"a": "g", "b": "S", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "m": "true"}
    return encode_frame(RequestCode.SEND_BATCH_MESSAGE, opaque, 0, ext=ext, body=build_batch(items))


TWO = (("K1", b"1"), ("K2", b"2"))


def two_batches(sim: SimCluster, second: tuple[tuple[str, bytes], ...], *, undecided: bool) -> list[Any]:
    """Sends TWO, and another batch over another connection; returns both answers."""
    sim.create_topic("S", attributes={"dedup": "strict"})
    leader = sim.leader()
    path, other = leader.connect(), leader.connect()
    if undecided:
        hold_disks(sim.followers())
    for each, messages in ((path, TWO), (other, second)):
        each.ask(batch_frame(1, *messages))
        sim.loop.run_for(0.3)
    release_disks(sim.followers())
    assert answered(sim, path, 1) == answered(sim, other, 1) == [[OK]]
    sim.settle()
    at_rest(sim, path, other)
    return [path.replies[1], other.replies[1]]


@pytest.mark.parametrize("undecided", [False, True])
def test_a_second_batch_of_a_strict_topic_is_the_first(sim_of: Any, *, undecided: bool) -> None:
    sim = sim_of()
    first, second = two_batches(sim, TWO, undecided=undecided)
    assert first == second, "in the same places"
    assert sim.leader().bodies("S") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("second", "more"),
    [
        (TWO[:1], []),
        (TWO[1:], []),
        ((*TWO, ("K3", b"3")), [b"1", b"2", b"3"]),
        (TWO[::-1], [b"2", b"1"]),
        ((("K1", b"2"),), [b"2"]),
        ((("", b"1"), ("", b"2")), [b"1", b"2"]),
    ],
    ids=["a part", "its end", "more", "another order", "another body", "without keys"],
)
def test_a_batch_of_what_is_stored_side_by_side_is_a_repetition_and_no_other(
    sim_of: Any, second: tuple[tuple[str, bytes], ...], more: list[bytes]
) -> None:
    sim = sim_of()
    two_batches(sim, second, undecided=False)
    assert sim.leader().bodies("S") == [b"1", b"2", *more]
