"""One request that cannot be proposed: it is answered, alone, and the node goes on leading in the same term."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.replication import command_queue, message_batch
from cluster.replication.outcome import Outcome
from cluster.runtime.peer_frames import Kind
from raftlog.errors import InvariantViolationError
from raftmq_wire.codec import encode_frame
from raftmq_wire.kernel import TWINS
from statemachine import commands
from statemachine.commands import Command, join, pack, pack_bare
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.removal_slices import Expire
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame

DEEP: Any = []
for _ in range(2000):
    DEEP = [DEEP]
NO_FORM: Any = [{1}]
KILLERS: dict[str, Command] = {
    "beyond 64 bits": PutGroup({"name": "g", "retry_max_times": 10**30}, False),
    "beyond 64 bits, negative": CommitOffsets([("g", 1, 0, -(10**23))]),
    "not Unicode": PutGroup({"name": "g\ud800"}, True),
    "no form of msgpack": Subscribe("g", NO_FORM),
    "too deep": Subscribe("g", DEEP),
    "too large": Subscribe("g", [("t", "TAG", "x" * (command_queue.COMMANDS_BYTES_MAX + 1), 1)]),
    "a barrier raised for nothing": CreateTopic({"name": "T", "read_queues": 1 << 70}, False),
}
NEW_TOPIC = {"topic": "T2", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
POISON = b"poison"


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(12) as made:
        made.create_topic("T")
        yield made


@pytest.mark.parametrize("name", KILLERS)
def test_commands_that_no_entry_can_hold(sim: SimCluster, name: str) -> None:
    leader = sim.leader()
    before = leader.raw.term, leader.raw.last_index
    refused = sim.propose(leader, KILLERS[name])
    assert [(result.outcome, result.unacceptable) for result in refused] == [(Outcome.FAIL, True)], "told at once"
    beside = sim.propose(leader, PutGroup({"name": "h"}, False))
    path = leader.connect()
    path.ask(send_frame(1, "T", b"a"))
    sim.loop.run_until(lambda: beside and path.replies, 5)
    assert beside[0].outcome is Outcome.OK
    assert codes(path, 1) == [0]
    assert (leader.raw.term, leader.raw.last_index) == (before[0], before[1] + 2)
    assert sim.leader() is leader


def test_commands_are_encoded_once_when_they_are_asked_for(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = sim.leader()
    packed: list[int] = []

    def counted(run: list[Command]) -> bytes:
        packed.append(len(run))
        return pack_bare(run)

    monkeypatch.setattr(command_queue, "pack_bare", counted)
    monkeypatch.setattr(commands, "pack", lambda run: packed.append(-len(run)) or pack(run))
    results = [sim.propose(leader, *[PutGroup({"name": f"g{at}-{n}"}, False) for n in range(20)]) for at in range(9)]
    assert sorted(packed) == [-20] * 9 + [20] * 9
    sim.loop.run_until(lambda: all(results), 5)
    assert sorted(packed) == [-20] * 9 + [20] * 9
    assert len(leader.state.groups) == 180


@pytest.mark.parametrize("counts", [(), (0,), (1, 2), (15,), (16,), (7, 9), (65_535,), (65_536,), (40_000, 40_000)])
def test_parts_that_are_joined_are_what_packing_all_gives(counts: tuple[int, ...]) -> None:
    runs = [[Expire(at) for at in range(count)] for count in counts]
    together = [command for run in runs for command in run]
    assert join(len(together), [pack_bare(run) for run in runs]) == pack(together)


def poisoned(monkeypatch: pytest.MonkeyPatch, leader: SimNode) -> list[str]:
    """Whatever makes an entry of a message with this body fails half-way through the batch."""
    add = message_batch._Builder.add

    def fails(self: Any, named: Any, queue_id: int, send: Any, cursor: Any, flag: int, body: bytes, *rest: Any) -> None:
        add(self, named, queue_id, send, cursor, flag, body, *rest)
        if body == POISON:
            raise OverflowError("int too large")

    monkeypatch.setattr(message_batch, "add_plain", TWINS["add_plain"])  # a message that is not taken by the kernel
    monkeypatch.setattr(message_batch._Builder, "add", fails)
    contained: list[str] = []
    leader.proposals.on_contained = lambda what, error: contained.append(f"{what}: {error}")
    return contained


def test_a_send_that_cannot_be_built_costs_its_batch_nothing(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = sim.leader()
    term, contained = leader.raw.term, poisoned(monkeypatch, leader)
    path = leader.connect()
    bodies = [b"a", b"b", POISON, b"c", POISON, b"d"]
    for at, body in enumerate(bodies):
        path.ask(send_frame(at, "T", body, queue_id=at % 2))
    leader.proposals.offsets.commit_later("g", 1, 0, 0)
    sim.loop.run_until(lambda: len(path.replies) == len(bodies), 5)
    assert [codes(path, at) for at in range(6)] == [[0], [0], [1], [0], [1], [0]]
    assert "no entry could be made of this message: int too large" in path.replies[2][0][1]
    assert len(contained) == 2
    assert path.in_flight.bytes == leader.proposals.gate.sends.bytes == 0
    assert leader.raw.term == term
    sim.settle()
    sim.check_equal()
    assert leader.bodies("T") == [b"a", b"b", b"c", b"d"], "every queue without a gap"


def test_effects_that_cannot_be_encoded_hold_nobody_up(sim: SimCluster, caplog: pytest.LogCaptureFixture) -> None:
    leader = sim.leader()
    leader.proposals.offsets.commit_later("g", 1, 0, 10**30)
    path = leader.connect()
    path.ask(send_frame(1, "T", b"a"))
    sim.loop.run_until(lambda: path.replies, 5)
    assert codes(path, 1) == [0]
    assert [record.getMessage() for record in caplog.records if "cannot be encoded" in record.getMessage()]


def test_what_the_core_raises_stops_the_node(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line between the two: its state is in doubt, so nothing more may come of it."""
    leader = sim.leader()

    def contradiction(*_: Any, **__: Any) -> Any:
        raise InvariantViolationError("two leaders")

    monkeypatch.setattr("raftlog.core.raw_node.make_entry", contradiction)
    path = leader.connect()
    path.ask(send_frame(1, "T", b"a"))
    with pytest.raises(InvariantViolationError):
        sim.loop.run_until(lambda: leader.failure, 5)
    assert not path.replies
    sim.loop.errors.clear()


def swallow_forwards(sim: SimCluster) -> list[int]:
    """Lets every node do nothing about a request that it is handed; the list tells the nodes that were handed one."""
    asked: list[int] = []
    for node in sim.running:
        _swallow(node, asked)
    return asked


def _swallow(node: SimNode, asked: list[int]) -> None:
    hears = node.hear()

    def on_frame(peer: Any, kind: int, header: list[Any], payload: bytes) -> None:
        if kind == Kind.FORWARD:
            asked.append(int(node.node_id))
        else:
            hears.frame(peer, kind, header, payload)

    node.hear(frame=on_frame)


def test_a_write_without_an_identity_is_handed_on_once(sim: SimCluster) -> None:
    """A follower that handed it to the next leader would do it twice, or kill that one too."""
    leader, follower = sim.leader(), sim.followers()[0]
    asked = swallow_forwards(sim)
    path = follower.connect()
    path.ask(encode_frame(17, 1, 0, ext=NEW_TOPIC))
    path.ask(encode_frame(30, 2, 0, ext={"topic": "T"}))
    sim.loop.run_until(lambda: len(asked) == 2, 1)
    leader.kill(power=False)
    sim.loop.run_until(lambda: path.replies, 0.1)
    assert list(path.replies) == [1], "what only reads goes on to the next leader"
    assert codes(path, 1) == [1]
    assert path.replies[1][0][1].startswith("[UNKNOWN] the connection to the leader")


@pytest.mark.parametrize("identity", [b"", b"p" * 16])
def test_a_request_that_two_leaders_did_not_survive_reaches_no_third(sim: SimCluster, identity: bytes) -> None:
    """A send goes on to the next leader; but not for ever, and not to the node that holds it itself."""
    first, (second, holder) = sim.leader(), sim.followers()
    holder.raw.hold_campaigns("test", True)
    asked = swallow_forwards(sim)
    path = holder.connect()
    path.ask(send_frame(1, "T", b"a", key="k", pid=identity, seq=1))
    sim.loop.run_until(lambda: asked, 1)
    first.kill(power=False)
    sim.loop.run_until(lambda: len(asked) == 2, 2)
    assert not path.replies
    first.start()
    _swallow(first, asked)
    second.kill(power=False)
    sim.loop.run_until(lambda: path.replies, 1)
    assert codes(path, 1) == [1]
    assert path.replies[1][0][1].startswith("[UNKNOWN] the connection to the leader")
    holder.raw.hold_campaigns("test", False)
    sim.leader()
    sim.loop.run_for(1)
    assert asked == [int(first.node_id), int(second.node_id)]
    assert holder.bodies("T") == []


def test_what_a_leader_hands_back_goes_on(sim: SimCluster) -> None:
    """It says that it has done nothing: that costs no try."""
    leader, follower = sim.leader(), sim.followers()[0]
    leader.append.hold()
    path = follower.connect()
    path.ask(encode_frame(17, 1, 0, ext=NEW_TOPIC))
    held = next(iter(follower.forwarded.values()))
    assert held.spent
    follower.forwarder.on_frame(leader.node_id, Kind.FORWARD_REPLY, [next(iter(follower.forwarded)), False], b"")
    assert not held.spent
