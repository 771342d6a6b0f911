"""Staged writes on three nodes: a winner's messages come into their queues once, under any leader; the rest goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.message_copies import copies_of
from cluster.broker.transactions import staged_delivery
from cluster.broker.transactions.staged_delivery import WRITE_LEFT, StagedAsk, StagedReads
from cluster.broker.transactions.staged_writes import DISCARDED_MAX
from raftlog.errors import OutOfRangeError, StorageError
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import BatchItem, build_batch
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.delivery.staged_writes import WINNERS_MAX, AttemptState, OpenAttempt
from statemachine.delivery.timers import TimerCounts
from statemachine.levels import GROUPS_LEVEL
from tests.support.sim_cluster import SimCluster, SimNode

SEED = 17
SMALL = {"writes.expire_ms": 60_000}


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> SimCluster:
    return sim_of(**SMALL)


Answer = tuple[int, str, dict[str, Any]]


class Writer:
    """A client over one node; each request waits for its answer."""

    def __init__(self, sim: SimCluster, node: SimNode) -> None:
        self.sim, self.path, self.opaque = sim, node.connect(), 0

    def tell(self, code: int, body: bytes = b"", **ext: object) -> int:
        self.opaque += 1
        fields = {name: str(value) for name, value in ext.items()}
        self.path.ask(encode_frame(code, self.opaque, 0, ext=fields, body=body))
        return self.opaque

    def ask(self, code: int, body: bytes = b"", **ext: object) -> Answer:
        opaque = self.tell(code, body, **ext)
        self.sim.loop.run_until(lambda: opaque in self.path.replies, 20, "an answer")
        ((code, remark, raw),) = self.path.replies[opaque]
        return code, remark, json.loads(raw) if raw else {}

    def open(self, write: int = 0, name: str = "q") -> int:
        code, remark, ext = self.ask(RequestCode.OPEN_ATTEMPT, name=name, write=write)
        assert code == 0, remark
        return int(ext["attempt"])

    def stage(self, attempt: int, sequence: int, *bodies: bytes, topic: str = "T", queue_id: int = 0) -> Answer:
        packed = build_batch([BatchItem(0, body, b"") for body in bodies])
        fields = {"attempt": attempt, "sequence": sequence, "topic": topic, "queueId": queue_id}
        return self.ask(RequestCode.STAGE_MESSAGES, packed, **fields)

    def commit(self, *winners: tuple[int, int], write: int = 0, name: str = "q") -> Answer:
        return self.ask(RequestCode.COMMIT_WRITE, json.dumps(winners).encode(), name=name, write=write)


def ended(sim: SimCluster) -> None:
    """Nothing is staged any more, on any node, and all nodes have the same rows."""
    sim.loop.run_until(lambda: not list(sim.leader().state.writes.attempts()), 30, "the end of all attempts")
    sim.settle()
    sim.check_equal()
    state = sim.leader().state
    assert (state.writes.left, state.timers.counts) == (0, TimerCounts())
    assert state.lowest_pinned_position() is None


@pytest.mark.parametrize("leads", [True, False])
def test_what_is_committed_comes_into_its_queues_once(sim: SimCluster, leads: bool) -> None:
    writer = Writer(sim, sim.leader() if leads else sim.followers()[0])
    winner, loser = writer.open(), writer.open()
    assert writer.stage(winner, 1, b"a", b"b")[0] == 0
    assert writer.stage(winner, 1, b"a", b"b")[0] == 0, "it came twice"
    assert writer.stage(winner, 2, b"c", queue_id=1)[0] == 0
    assert writer.stage(loser, 1, b"c", b"x")[0] == 0
    sim.settle()
    assert sim.leader().bodies("T") == []
    assert writer.commit((winner, 3)) == (0, "", {"committed": "0", "earlier": "false"})
    ended(sim)
    assert sim.leader().bodies("T") == [b"a", b"b", b"c"]
    assert writer.commit((winner, 3)) == (0, "", {"committed": "0", "earlier": "true"})
    code, _, ext = writer.ask(RequestCode.OPEN_ATTEMPT, name="q", write=0)
    assert (code, ext) == (0, {"committed": "0"})
    ended(sim)
    assert sim.leader().bodies("T") == [b"a", b"b", b"c"]


def test_a_row_that_ends_while_it_is_read_is_not_damage(sim: SimCluster) -> None:
    """Another leader copies it, and the log is trimmed past it, before this lane reads its messages."""
    writer = Writer(sim, sim.leader())
    attempt = writer.open()
    assert writer.stage(attempt, 1, b"a")[0] == 0
    staged = sim.leader().state.writes.get(attempt)
    assert staged is not None
    ask = StagedAsk(None, attempt, staged.due_ms, None, frozenset(), 10, 1 << 20)
    assert [row.bad is not None for row in StagedReads(sim.leader().state, trimmed).drain([ask])[0].rows] == [True]

    def ends(position: int, size: int) -> bytes:
        if sim.leader().state.writes.get(attempt) is not None:
            assert writer.commit((attempt, 1))[0] == 0
            ended(sim)
        return trimmed(position, size)

    (found,) = StagedReads(sim.leader().state, ends).drain([ask])
    assert found.rows == []


def trimmed(position: int, size: int) -> bytes:
    raise OutOfRangeError("the log begins above this position")


def test_a_commit_that_lacks_messages_is_refused(sim: SimCluster) -> None:
    writer = Writer(sim, sim.leader())
    attempt = writer.open()
    assert writer.stage(attempt, 1, b"a")[0] == 0
    code, remark, _ = writer.commit((attempt, 2))
    assert (code, "has 1 messages, not 2" in remark) == (604, True)
    assert writer.ask(RequestCode.ABORT_WRITE, name="q", write=0)[2] == {"attempts": "1"}
    code, remark, _ = writer.stage(attempt, 2, b"b")
    assert (code, "is not open" in remark) == (604, True)
    ended(sim)
    assert sim.leader().bodies("T") == []


def test_a_cluster_of_one_group_has_no_writes_to_several(sim: SimCluster) -> None:
    writer = Writer(sim, sim.followers()[0])
    decider = writer.open()
    fields = {"name": "q", "write": 0, "decider": decider}
    code, remark, _ = writer.ask(RequestCode.COMMIT_GROUPS, b"[]", groups="2", **fields)
    assert (code, "needs level 14" in remark) == (14, True)
    sim.propose(sim.leader(), Finalize(GROUPS_LEVEL))
    sim.settle()
    code, remark, _ = writer.ask(RequestCode.PREPARE_WRITE, json.dumps([[decider, 0]]).encode(), **fields)
    assert (code, "group 1 commits a write and does not prepare it" in remark) == (604, True), remark
    code, remark, _ = writer.ask(RequestCode.COMMIT_GROUPS, b"[]", groups="2,3", **fields)
    assert (code, "there is no group 2" in remark) == (604, True)
    for groups in ("1", "65", "2,", "x", "-2"):
        assert writer.ask(RequestCode.COMMIT_GROUPS, b"[]", groups=groups, **fields)[0] == 29
    assert writer.ask(RequestCode.COMMIT_GROUPS, b"{}", groups="2", **fields)[0] == 29
    assert [one.state for one in sim.leader().state.writes.attempts()] == [AttemptState.OPEN]


@pytest.mark.parametrize("leads", [True, False])
def test_a_request_that_has_no_body_is_refused_with_one(sim: SimCluster, leads: bool) -> None:
    writer = Writer(sim, sim.leader() if leads else sim.followers()[0])
    for code in (RequestCode.OPEN_ATTEMPT, RequestCode.ABORT_WRITE):
        said = writer.ask(code, b"x", name="q", write=0)
        assert said == (29, f"the body of request {code} has 1 bytes, 0 are allowed", {})
    assert not list(sim.leader().state.writes.attempts())


def test_what_cannot_be_staged_is_refused(sim: SimCluster) -> None:
    writer = Writer(sim, sim.leader())
    attempt = writer.open()
    assert writer.stage(attempt, 1, b"a", topic="none")[0] == 17
    assert writer.stage(attempt, 1, b"a", topic="RAFTMQ_SYS_STAGED")[0] == 17
    assert writer.stage(attempt, 1, b"a", queue_id=99)[0] == 29
    assert writer.stage(99, 1, b"a")[0] == 604
    assert writer.stage(attempt, 0, b"a")[0] == 29
    leader = sim.leader()
    assert leader.refused == {}, "these are errors of the writer"
    full = leader.proposals.gate.hold_answer(writer.path.in_flight, leader.config.limits.connection_inflight_bytes_max)
    code, remark, _ = writer.stage(attempt, 1, b"a")
    assert (code, "connection_inflight_bytes_max" in remark, leader.refused) == (2, True, {"busy": 1})
    full.answered()
    assert writer.commit((attempt, 0))[0] == 0, "nothing was staged"


def test_many_rows_are_copied_by_one_leader_after_the_other(sim_of: Callable[..., SimCluster]) -> None:
    """The leader is killed when some of the copies are committed: the next one goes on with the rows that are left."""
    sim = sim_of(**SMALL, **{"limits.batch_messages_max": 20})
    writer = Writer(sim, sim.leader())
    bodies = [b"%d" % number for number in range(600)]
    winner, loser = writer.open(), writer.open()
    for sequence, at in enumerate(range(0, 600, 10), 1):
        assert writer.stage(winner, sequence, *bodies[at : at + 10])[0] == 0
        assert writer.stage(loser, sequence, *bodies[at : at + 10])[0] == 0
    first = sim.leader()
    writer.tell(RequestCode.COMMIT_WRITE, json.dumps([[winner, 600]]).encode(), name="q", write="0")
    sim.loop.run_until(lambda: len(first.bodies("T")) > 0, 20, "some copies")
    copied = len(first.bodies("T"))
    first.kill(power=False)
    sim.loop.run_until(lambda: any(node.proposals.open for node in sim.running), 30, "a new leader")
    assert copied < 600, "the test is about a copy that was interrupted"
    first.start()
    ended(sim)
    assert sim.leader().bodies("T") == bodies


def test_the_next_leader_goes_on_with_discarding_many_attempts(sim: SimCluster) -> None:
    """The leader is killed when its slices have discarded some of the attempts that lost."""
    writer = Writer(sim, sim.leader())
    winner, *losers = [writer.open() for _ in range(100)]
    for number in (winner, *losers):
        assert writer.stage(number, 1, b"%d" % number)[0] == 0
    first = sim.leader()
    writer.tell(RequestCode.COMMIT_WRITE, json.dumps([[winner, 1]]).encode(), name="q", write="0")
    sim.loop.run_until(lambda: first.state.removing > 0, 20, "the commit")
    sim.loop.run_until(lambda: len(first.state.writes.draining) > 4, 20, "the first slice")
    assert first.state.removing
    assert len(first.state.writes.draining) < len(losers)
    first.kill(power=False)
    sim.loop.run_until(lambda: any(node.proposals.open for node in sim.running), 30, "a new leader")
    left = sim.leader().state
    assert not [one for one in left.writes.attempts() if one.state is AttemptState.OPEN]
    assert Writer(sim, sim.leader()).stage(losers[-1], 2, b"more")[0] == 604
    first.start()
    ended(sim)
    assert not sim.leader().state.removing
    assert sim.leader().bodies("T") == [b"%d" % winner]


def test_attempts_of_a_write_are_aborted_page_by_page(sim: SimCluster) -> None:
    writer, many = Writer(sim, sim.leader()), 2 * DISCARDED_MAX + 30
    kept = writer.open(6)
    opened = sim.propose(sim.leader(), *[OpenAttempt("q", 5, 60_000) for _ in range(many - 1)])
    sim.loop.run_until(lambda: opened, 10, "the attempts are opened")
    assert writer.stage(writer.open(5), 1, b"a")[0] == 0
    assert writer.ask(RequestCode.ABORT_WRITE, name="q", write=5)[2] == {"attempts": str(many)}
    assert writer.ask(RequestCode.ABORT_WRITE, name="q", write=5)[2] == {"attempts": "0"}
    assert writer.commit((kept, 0), write=6)[0] == 0
    ended(sim)


def test_a_commit_names_no_more_attempts_than_one_entry_may_change(sim: SimCluster) -> None:
    writer = Writer(sim, sim.leader())
    code, remark, _ = writer.commit(*[(number, 1) for number in range(WINNERS_MAX + 1)])
    assert (code, str(WINNERS_MAX) in remark) == (29, True)


def test_what_nobody_commits_expires_and_a_deleted_topic_takes_its_messages(sim: SimCluster) -> None:
    writer = Writer(sim, sim.leader())
    assert writer.stage(writer.open(5), 1, b"a")[0] == 0
    sim.create_topic("U")
    attempt = writer.open(6)
    assert writer.stage(attempt, 1, b"u", topic="U")[0] == 0
    assert writer.stage(attempt, 2, b"t")[0] == 0
    assert writer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="U")[0] == 0
    assert writer.commit((attempt, 2), write=6)[0] == 0
    sim.loop.run_until(lambda: not list(sim.leader().state.writes.attempts()), 30, "the end")
    assert sim.leader().bodies("T") == [b"t"]
    late = writer.open(7)
    assert writer.stage(late, 1, b"late")[0] == 0
    sim.loop.run_for(45)
    alarms = sim.leader().running.alarms
    assert alarms.raised(WRITE_LEFT)
    assert writer.stage(late, 2, b"later")[0] == 0
    sim.loop.run_for(15)
    assert not alarms.raised(WRITE_LEFT)
    sim.loop.run_for(30)
    assert sim.leader().state.writes.get(late) is not None, "counted from what was staged last"
    ended(sim)
    assert sim.leader().bodies("T") == [b"t"]
    assert writer.commit((late, 2), write=7)[0] == 604


@pytest.mark.parametrize("decoded", [False, True], ids=["cannot be read", "cannot be decoded"])
def test_what_is_damaged_holds_nothing_up_and_comes_when_it_is_repaired(sim: SimCluster, decoded: bool) -> None:
    leader = sim.leader()
    writer = Writer(sim, leader)
    attempt = writer.open()
    assert writer.stage(attempt, 1, b"a", b"b")[0] == 0
    assert writer.stage(attempt, 2, b"c", queue_id=1)[0] == 0
    sim.settle()
    services, reported = leader.running.serving.services, []
    first, second = services.state.timers.staged(staged_due(leader, attempt))
    bad = first.messages()[1 if decoded else 0].position
    read_log = services.read_log

    def unreadable(position: int, size: int) -> bytes:
        if position < second.position and not decoded:
            raise StorageError("a sector is gone")
        return read_log(position, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "report_damage", lambda position, size: reported.append(position))
        patch.setattr(services, "read_log", unreadable)
        if decoded:
            patch.setattr(staged_delivery, "copies_of", lambda stored, items: copies_of(stored, items)[:1])
        assert writer.commit((attempt, 3))[0] == 0
        sim.loop.run_until(lambda: leader.bodies("T") == [b"c"], 20, "what can be read")
        sim.loop.run_for(3)
        assert leader.bodies("T") == [b"c"]
        assert set(reported) == {bad}
        assert len(reported) > 1, "it is tried again"
    lane: Any = leader.running.serving.broker.staged._lane
    lane._lane.read_log = read_log
    ended(sim)
    assert sorted(sim.leader().bodies("T")) == [b"a", b"b", b"c"]


def staged_due(node: SimNode, attempt: int) -> int:
    found = node.state.writes.get(attempt)
    assert found is not None
    return found.due_ms
