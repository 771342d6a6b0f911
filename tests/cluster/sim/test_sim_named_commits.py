"""Commits that carry an identity: done once, however often, late, and through whomever they come."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.command_queue import cut_calls, encode, entry_of
from cluster.replication.pending_requests import PendingCommands
from raftlog.types import EntryType
from statemachine import payload
from statemachine.command_table import unpack
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.payload import SESSION_ROW, SessionRows
from statemachine.removal_slices import DeleteTopic
from tests.cluster.sim.test_sim_offsets import answered, commit, offset, settled_offset, sim  # noqa: F401 - a fixture
from tests.support.sim_cluster import SimCluster

SEED = 24
OK, UNKNOWN, REFUSED, NO_TOPIC, INVALID = 0, 1, 14, 17, 29


def named(opaque: int, value: int, sequence: int, low: int = 0, sender: int = 1, **more: Any) -> bytes:
    identity: dict[str, Any] = {"raftmqPid": bytes([sender] * 16).hex(), "raftmqSeq": str(sequence)}
    identity["raftmqLow"] = str(low or sequence)
    return commit(opaque, value, **identity, **more)


def test_a_late_repetition_moves_nothing_back(sim: SimCluster) -> None:  # noqa: F811
    path, other = sim.leader().connect(), sim.followers()[0].connect()
    path.ask(named(1, 7, 1))
    assert answered(sim, path, 1) == OK
    path.ask(commit(2, 3))
    assert answered(sim, path, 2) == OK
    other.ask(named(1, 7, 1))
    assert answered(sim, other, 1) == OK, "it was done"
    assert settled_offset(sim) == 3
    path.ask(named(3, 9, 2))
    assert answered(sim, path, 3) == OK
    other.ask(named(4, 7, 1))
    assert answered(sim, other, 4) == INVALID, "its sender has settled it"
    assert settled_offset(sim) == 9


def test_the_next_leader_knows_it_too(sim: SimCluster) -> None:  # noqa: F811
    """The first leader stored it and died before it said so; meanwhile somebody moved the group."""
    old = sim.leader()
    path = old.connect()
    path.ask(named(1, 7, 1))
    sim.loop.run_until(lambda: offset(old) == 7, 5)
    old.kill(power=False)
    new = sim.leader(besides=old).connect()
    new.ask(commit(1, 3))
    assert answered(sim, new, 1) == OK
    new.ask(named(2, 7, 1))
    assert answered(sim, new, 2) == OK
    assert settled_offset(sim) == 3


def test_repeated_while_it_is_on_its_way(sim: SimCluster) -> None:  # noqa: F811
    leader = sim.leader()
    path = leader.connect()
    path.ask(named(1, 7, 1))
    path.ask(commit(2, 3))
    path.ask(named(3, 7, 1))
    assert [answered(sim, path, at) for at in (1, 2, 3)] == [OK] * 3
    assert settled_offset(sim) == 3


def test_a_newer_one_on_its_way_counts(sim: SimCluster) -> None:  # noqa: F811
    path = sim.leader().connect()
    path.ask(named(1, 9, 2))
    path.ask(named(2, 7, 1))
    assert [answered(sim, path, at) for at in (1, 2)] == [OK, INVALID]
    assert settled_offset(sim) == 9


def test_several_queues_at_once(sim: SimCluster) -> None:  # noqa: F811
    path = sim.leader().connect()
    for queue in (1, 0):
        path.ask(named(queue, 5 + queue, 1 + queue, low=1, queueId=str(queue)))
    path.ask(named(2, 8, 1, sender=2))
    assert [answered(sim, path, at) for at in (0, 1, 2)] == [OK] * 3
    assert settled_offset(sim) == 8
    for node in sim.running:
        session = node.state.session(bytes([1] * 16))
        assert session is not None
        assert (session.low_sequence, session.max_sequence) == (1, 2)
        assert session.find(1) is not None
        assert session.find(2) is not None


def test_they_are_an_entry_that_every_release_applies() -> None:
    def call(sequence: int, low: int, session: bool = True) -> PendingCommands:
        run: list[Command] = [CommitOffsets([("g", 1, 0, sequence)])]
        rows = SESSION_ROW.pack(sequence, 1, 0, sequence, 0)
        named_by = SessionRows(bytes(16), low, sequence, rows) if session else None
        return PendingCommands(run, encode(run), lambda _: None, 0, named_by)

    calls = [call(3, 2), call(2, 2), call(3, 2), call(4, 2, session=False), call(5, 5)]
    cut = cut_calls(calls, 1 << 20)
    assert cut == calls[:3]
    kind, data = entry_of(cut)
    assert kind == EntryType.MESSAGES
    decoded = payload.decode(data)
    assert not payload.has_messages(data)
    assert (decoded.message_count, decoded.runs, decoded.keys) == (0, b"", b"")
    assert unpack(decoded.effects) == [command for each in cut for command in each.commands]
    (session,) = decoded.iter_sessions()
    assert (session.low_sequence, session.max_sequence) == (2, 3)
    assert [row[0] for row in SESSION_ROW.iter_unpack(session.rows)] == [2, 3]
    assert cut_calls(calls[3:], 1 << 20) == calls[3:4]
    assert entry_of(calls[3:4])[0] == EntryType.COMMAND


def test_the_order_among_commits_is_kept(sim: SimCluster) -> None:  # noqa: F811
    leader = sim.leader()
    path, topic = leader.connect(), leader.state.topics["T"].id
    path.ask(commit(1, 5, oneway=True))
    path.ask(named(2, 7, 1))
    results = sim.propose(leader, CommitOffsets([("g", topic, 0, 9)]))
    path.ask(named(3, 4, 2))
    path.ask(commit(4, 6, oneway=True))
    assert [answered(sim, path, at) for at in (2, 3)] == [OK, OK]
    assert results
    assert settled_offset(sim) == 6


def test_refusals(sim: SimCluster) -> None:  # noqa: F811
    leader = sim.leader()
    path = leader.connect()
    path.ask(commit(1, 7, raftmqPid="12", raftmqSeq="1"))
    path.ask(commit(2, 7, raftmqPid="00" * 16, raftmqSeq="0"))
    path.ask(commit(3, 7, raftmqPid="00" * 16, raftmqSeq="1", raftmqLow="2"))
    path.ask(commit(4, 7, raftmqPid="00" * 16, raftmqSeq=str(1 << 64)))
    assert [answered(sim, path, at) for at in (1, 2, 3, 4)] == [INVALID] * 4
    sim.propose(leader, DeleteTopic("T"))
    path.ask(named(5, 7, 1))
    path.ask(named(6, 7, 1))
    assert [answered(sim, path, at) for at in (5, 6)] == [NO_TOPIC] * 2
    sim.settle()
    sim.check_equal()


@pytest.mark.parametrize("decided", [True, False])
def test_undecided_and_repeated(sim: SimCluster, decided: bool) -> None:  # noqa: F811
    leader, followers = sim.leader(), sim.followers()
    for node in followers:
        node.append.hold()
    path = leader.connect()
    path.ask(named(1, 7, 1))
    assert answered(sim, path, 1) == UNKNOWN
    path.ask(named(2, 7, 1))
    if decided:
        for node in followers:
            node.append.release()
    assert answered(sim, path, 2) == (OK if decided else UNKNOWN)
    assert settled_offset(sim) == 7
