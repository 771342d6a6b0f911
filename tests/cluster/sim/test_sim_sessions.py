"""What recognises a repeat cannot be taken by others, and works for its owner in every place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.refusal import Refused
from cluster.replication.send_identity import SLICES
from raftmq_wire.codec import encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.message_format import BatchItem, build_batch
from raftmq_wire.signature import Credentials
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming.groups import PutGroup
from statemachine.levels import LEVEL, OWNERS_LEVEL
from tests.cluster.sim.test_sim_cluster_level import restart
from tests.support.sim_cluster import SimCluster, SimNode
from tests.support.sim_users import OPERATOR, key_file

SEED = 53
OK, UNKNOWN, INVALID, ILLEGAL, NO_PERMISSION = 0, 1, 29, 604, 16
HUGE = 1 << 40
PID = bytes(range(16))
EQUAL_CRC = (b"plumless", b"buckeroo")
"""Two texts with one CRC-32."""

SHOP, MILL, EVE = (
    Credentials("shop", "shop-secret"),
    Credentials("mill", "mill-secret"),
    Credentials("eve", "eve-secret"),
)
RULES: dict[Credentials, list[list[Any]]] = {
    SHOP: [[1, "Topic:T", ["Pub"], [], True], [1, "Topic:S", ["Pub"], [], True], [1, "Group:q", ["Pub"], [], True]],
    MILL: [[1, "Topic:T", ["Pub"], [], True], [1, "Topic:S", ["Pub"], [], True], [1, "Group:q", ["Pub"], [], True]],
    EVE: [
        [1, "Topic:own", ["Pub", "Sub"], [], True],
        [1, "Group:g", ["Sub"], [], True],
        [1, "Topic:staged", ["Pub"], [], True],
    ],
}
RULES[SHOP].append([1, "Topic:staged", ["Pub"], [], True])


class Asker:
    """A client over one connection, of a user or of none. Each request waits for its answer."""

    def __init__(self, sim: SimCluster, node: SimNode, who: Credentials | None = None) -> None:
        self.sim, self.path, self.who, self._opaque = sim, node.connect(), who, 0

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        """Sends a request; returns its opaque."""
        self._opaque += 1
        signed = ext if self.who is None else self.who.signed(ext, body)
        self.path.ask(encode_frame(code, self._opaque, 0, ext=signed, body=body, language="JAVA"))
        return self._opaque

    def answer(self, opaque: int) -> tuple[int, str, dict[str, str]]:
        """Waits for an answer: code, remark, ext."""
        self.sim.loop.run_until(lambda: opaque in self.path.replies, 20, "an answer")
        ((code, remark, raw),) = self.path.replies[opaque]
        return code, remark, json.loads(raw) if raw else {}

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[int, str, dict[str, str]]:
        return self.answer(self.tell(code, ext, body))

    def tell_send(
        self, body: bytes, topic: str = "T", key: str = "", pid: bytes = b"", seq: int = 1, low: int = 1
    ) -> int:
        ext = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
        ext["i"] = f"UNIQ_KEY\x01{key}\x02" if key else ""
        return self.tell(RequestCode.SEND_MESSAGE_V2, ext | (_identity(pid, seq, low) if pid else {}), body)

    def send(self, *arguments: Any, **named: Any) -> int:
        """Sends a message; returns the code of the answer."""
        return self.answer(self.tell_send(*arguments, **named))[0]

    def commit_offset(self, offset: int, pid: bytes, seq: int = 1, low: int = 1, topic: str = "T") -> int:
        ext = {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": str(offset)}
        return self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext | _identity(pid, seq, low))[0]

    def open(self) -> int:
        return int(self.ask(RequestCode.OPEN_ATTEMPT, {"name": "q", "write": "0"})[2]["attempt"])

    def stage(self, attempt: int, sequence: int, *bodies: bytes) -> tuple[int, str, dict[str, str]]:
        ext = {"attempt": str(attempt), "sequence": str(sequence), "topic": "staged", "queueId": "0"}
        return self.ask(RequestCode.STAGE_MESSAGES, ext, build_batch([BatchItem(0, body, b"") for body in bodies]))

    def commit_write(self, *winners: tuple[int, int]) -> int:
        return self.ask(RequestCode.COMMIT_WRITE, {"name": "q", "write": "0"}, json.dumps(winners).encode())[0]


def _identity(pid: bytes, seq: int, low: int) -> dict[str, str]:
    return {"raftmqPid": pid.hex(), "raftmqSeq": str(seq), "raftmqLow": str(low)}


def finalize(sim: SimCluster, level: int = LEVEL) -> None:
    results = sim.propose(sim.leader(), Finalize(level))
    sim.loop.run_until(lambda: results, 10, "the level")
    sim.settle()


def done(sim: SimCluster, change: Callable[[Any, Callable[[Refused | None], None]], None]) -> None:
    """Carries out a change of the operator on the leader, and waits until all nodes know it."""
    told: list[Refused | None] = []
    leader = sim.leader()
    leader.run(lambda: change(leader.running.serving.broker.user_admin, told.append))
    sim.loop.run_until(lambda: told, 10, "a change of users")
    assert told == [None]
    version = leader.state.access.version
    sim.loop.run_until(lambda: {node.state.access.version for node in sim.running} == {version}, 10, "all know it")


def judge(sim: SimCluster, mode: str = "enforce") -> None:
    """Makes the users and their rules, which count from now on."""
    done(sim, lambda admin, told: admin.create(OPERATOR, "root", "root-secret", told, is_super=True, enabled=True))
    for who, rules in RULES.items():
        name, secret = who.access_key, f"{who.access_key}-secret"
        done(sim, lambda admin, told: admin.create(OPERATOR, name, secret, told, is_super=False, enabled=True))  # noqa: B023
        done(sim, lambda admin, told: admin.set_rules(OPERATOR, name, rules, told))  # noqa: B023
    done(sim, lambda admin, told: admin.set_mode(OPERATOR, mode, told))


Made = Callable[..., SimCluster]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Made]:
    """Makes a cluster of a level, in which users are judged or not."""
    with ExitStack() as stack:

        def make(*, users: bool, level: int = LEVEL, **overrides: Any) -> SimCluster:
            known: dict[str, Any] = {"auth.key_file": str(key_file(tmp_path))} if users else {}
            sim = stack.enter_context(SimCluster(int(os.environ.get("SIM_SEED", SEED)), **known, **overrides))
            for topic in ("T", "own", "staged"):
                sim.create_topic(topic)
            sim.create_topic("S", attributes={"dedup": "strict"})
            sim.propose(sim.leader(), PutGroup({"name": "g"}, False))
            finalize(sim, level)
            if users:
                judge(sim)
            return sim

        yield make


def stored(sim: SimCluster, topic: str = "T") -> list[bytes]:
    """The messages of a topic, sorted; all nodes have the same ones."""
    sim.heal()
    sim.settle()
    sim.check_equal()
    found = [sorted(node.bodies(topic)) for node in sim.running]
    assert found[0] == found[1] == found[2]
    return found[0]


def guesses(asker: Asker) -> list[bytes]:
    """The sessions of the next connections, as they follow from the key of an own message and a counter."""
    _, _, ext = asker.answer(asker.tell_send(b"mine", "own"))
    return [bytes.fromhex(ext["transactionId"][:16]) + number.to_bytes(8, "big") for number in range(1, 120)]


def honest(sim: SimCluster, who: Credentials | None) -> None:
    """Sends of new connections to every node: all that is answered with 0 is stored, and all is answered with 0."""
    sent = []
    for number in range(20):
        asker = Asker(sim, sim.running[number % 3], who)
        for each in range(3):
            sent.append(b"%d-%d" % (number, each))
            assert asker.send(sent[-1], key=f"K{number}-{each}") == OK
    assert stored(sim) == sorted(sent)


# --- sessions of connections ---


@pytest.mark.parametrize("users", [False, True], ids=["nobody", "users"])
def test_sends_under_guessed_sessions_take_nothing_from_new_connections(cluster: Made, users: bool) -> None:
    sim = cluster(users=users)
    attacker = Asker(sim, sim.leader(), EVE if users else None)
    sent = [attacker.tell_send(b"x", "own", pid=pid, seq=seq) for pid in guesses(attacker) for seq in (1, 2, 3)]
    assert {attacker.answer(opaque)[0] for opaque in sent} == {OK}
    honest(sim, SHOP if users else None)


@pytest.mark.parametrize("users", [False, True], ids=["nobody", "users"])
def test_commits_of_offsets_under_guessed_sessions_settle_nothing_of_new_connections(
    cluster: Made, users: bool
) -> None:
    sim = cluster(users=users)
    attacker = Asker(sim, sim.leader(), EVE if users else None)
    for pid in guesses(attacker):
        assert attacker.commit_offset(1, pid, HUGE, HUGE, topic="own") == OK
    honest(sim, SHOP if users else None)


@pytest.mark.parametrize("level", [OWNERS_LEVEL - 1, LEVEL])
def test_no_answer_and_no_message_shows_a_session(cluster: Made, level: int) -> None:
    """Looks at every byte that went to a client, and at every stored message, after sends and refusals of all kinds."""
    sim = cluster(users=False, level=level)
    askers = [Asker(sim, node) for node in sim.running for _ in range(2)]
    for number, asker in enumerate(askers):
        assert asker.send(b"a", key=f"K{number}") == OK
        assert asker.send(b"b") == OK
        asker.send(b"c", pid=PID, seq=HUGE + number, low=HUGE + number)
        asker.send(b"c", pid=PID, seq=1)  # long settled
        asker.send(b"c", pid=bytes(3))
        asker.commit_offset(1, PID[::-1], HUGE, HUGE)
        asker.commit_offset(1, PID[::-1], 1)
    ids = {asker.path.session.producer_id for asker in askers if asker.path.session is not None}
    assert len(ids) == len(askers)
    assert {len(each) for each in ids} == {16}
    for node in sim.running:
        ids |= {key[1:17] for key, _ in node.kv.scan("dedup", b"p", b"q")}
    assert len(ids) > len(askers)
    assert stored(sim)
    shown = b"".join([frame for node in sim.running for path in node.paths for frame in path.written])
    for node in sim.running:
        for topic in node.state.topics.values():
            for queue_id in range(topic.queues):
                for item in node.state.fetch(topic.id, queue_id, 0, 1000):
                    shown += node.log.read_at(item.position, item.size)
    for each in ids:
        assert not [form for form in (each, each.hex().encode(), each.hex().upper().encode()) if form in shown]


def test_two_nodes_give_two_sessions_and_a_restart_gives_others(cluster: Made) -> None:
    sim = cluster(users=False)
    seen = set[bytes]()
    for _ in range(2):
        for node in sim.running:
            asker = Asker(sim, node)
            assert asker.send(b"m") == OK
            assert asker.path.session is not None
            seen.add(asker.path.session.producer_id)
        node.kill(power=False)
        node.start()
        sim.settle()
    assert len(seen) == 6


# --- sessions that a client names ---


def test_two_users_with_one_id_do_not_meet(cluster: Made) -> None:
    sim = cluster(users=True)
    shop, mill = Asker(sim, sim.leader(), SHOP), Asker(sim, sim.followers()[0], MILL)
    for seq in (1, 2):
        assert shop.send(b"of shop %d" % seq, pid=PID, seq=seq) == OK
        assert mill.send(b"of mill %d" % seq, pid=PID, seq=seq) == OK
    assert mill.send(b"of mill 9", pid=PID, seq=HUGE, low=HUGE) == OK
    assert shop.send(b"of shop 3", pid=PID, seq=3) == OK
    for seq in (1, 2, 3):
        assert shop.send(b"of shop %d" % seq, pid=PID, seq=seq) == OK, "each one's own are recognised"
    assert stored(sim) == [b"of mill 1", b"of mill 2", b"of mill 9", b"of shop 1", b"of shop 2", b"of shop 3"]


def test_a_repeat_is_recognised_at_every_node_and_after_the_leader_is_gone(cluster: Made) -> None:
    sim = cluster(users=True)
    old, other = sim.leader(), sim.followers()[0]
    first, second = Asker(sim, old, SHOP), Asker(sim, other, SHOP)
    _, _, place = first.answer(first.tell_send(b"m", key="K", pid=PID))
    assert second.answer(second.tell_send(b"m", key="K", pid=PID)) == (OK, "", place)
    old.kill(power=False)
    assert second.send(b"m", pid=PID) == OK
    assert stored(sim) == [b"m"]


def test_kinds_cannot_reach_each_other(cluster: Made) -> None:
    sim = cluster(users=False)
    asker = Asker(sim, sim.leader())
    attempt = asker.open()
    name = SLICES + attempt.to_bytes(8, "big")
    group_offset = lambda: sim.leader().state.offset("g", sim.leader().state.topics["T"].id, 0)  # noqa: E731
    for pid in (PID, name):
        assert asker.commit_offset(3, pid, HUGE, HUGE) == OK
        assert asker.send(b"m1", pid=pid, seq=1) == OK
        assert asker.send(b"m2", pid=pid, seq=7, low=7) == OK
    assert asker.stage(attempt, 1, b"s")[0] == OK
    assert asker.commit_offset(5, PID[::-1], 7, 7) == OK
    assert asker.send(b"m3", pid=PID[::-1], seq=7, low=7) == OK
    assert asker.commit_offset(6, PID[::-1], 8, 7) == OK
    sim.settle()
    assert group_offset() == 6
    assert asker.commit_write((attempt, 1)) == OK
    assert stored(sim) == sorted([b"m1", b"m2"] * 2 + [b"m3"])
    sim.loop.run_until(lambda: sim.leader().bodies("staged") == [b"s"], 10)


def test_a_sequence_is_the_same_send_only_for_the_same_topic(cluster: Made) -> None:
    sim = cluster(users=False)
    asker, other = Asker(sim, sim.leader()), Asker(sim, sim.followers()[0])
    for _ in range(2):
        assert asker.send(b"m", pid=PID) == OK
    assert other.send(b"other", "own", pid=PID) == OK
    assert stored(sim) == [b"m"]
    assert stored(sim, "own") == [b"other"]
    assert asker.commit_offset(4, PID, topic="own") == OK
    assert asker.commit_offset(7, PID, topic="T") == OK
    sim.settle()
    assert [sim.leader().state.offset("g", sim.leader().state.topics[name].id, 0) for name in ("own", "T")] == [4, 7]


def test_a_busy_leader_tells_apart_what_it_has_and_what_it_has_not(cluster: Made) -> None:
    sim = cluster(users=False)
    leader = sim.leader()
    asker = Asker(sim, leader)
    assert asker.send(b"m", pid=PID) == OK
    leader.run(leader.proposals.refuse, "the disk is full")
    assert asker.send(b"m", pid=PID) == OK, "it is stored"
    assert asker.send(b"m", "own", pid=PID) != OK
    assert asker.send(b"m", pid=PID, seq=2) != OK
    assert asker.send(b"m", pid=PID[:15]) != OK
    leader.run(leader.proposals.refuse, "")
    assert stored(sim) == [b"m"]
    assert stored(sim, "own") == []


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_a_session_without_a_user_is_the_first_user_s(cluster: Made, mode: str) -> None:
    """Users are switched on between a send and its repetition."""
    sim = cluster(users=True)
    done(sim, lambda admin, told: admin.set_mode(OPERATOR, mode, told))
    before = Asker(sim, sim.leader())
    assert before.send(b"m", pid=PID, seq=5) == OK
    assert before.commit_offset(7, PID, 5) == OK
    assert before.commit_offset(3, PID[::-1]) == OK
    done(sim, lambda admin, told: admin.set_mode(OPERATOR, "observe", told))
    after = Asker(sim, sim.followers()[0], SHOP)
    assert after.send(b"m", pid=PID, seq=5) == OK
    assert after.commit_offset(7, PID, 5) == OK
    assert after.send(b"n", pid=PID, seq=6) == OK
    assert after.send(b"n", pid=PID, seq=4) == OK, "it was not stored"
    assert after.send(b"m", pid=PID, seq=5) == OK
    assert stored(sim) == [b"m", b"n", b"n"]
    assert sim.leader().state.offset("g", sim.leader().state.topics["T"].id, 0) == 3


def test_what_a_session_without_a_user_has_settled_binds_no_user(cluster: Made) -> None:
    sim = cluster(users=True)
    done(sim, lambda admin, told: admin.set_mode(OPERATOR, "observe", told))
    stranger = Asker(sim, sim.leader())
    assert stranger.send(b"x", "own", pid=PID, seq=HUGE, low=HUGE) == OK
    assert stranger.commit_offset(1, PID, HUGE, HUGE, topic="own") == OK
    shop = Asker(sim, sim.followers()[0], SHOP)
    assert [shop.send(b"m%d" % seq, pid=PID, seq=seq) for seq in (1, 2)] == [OK, OK]
    assert shop.commit_offset(7, PID, 1) == OK
    assert stored(sim) == [b"m1", b"m2"]
    assert sim.leader().state.offset("g", sim.leader().state.topics["T"].id, 0) == 7


def test_a_sequence_under_way_is_the_same_send_only_for_the_same_topic(cluster: Made) -> None:
    sim = cluster(users=False, **{"send.deadline_ms": 20_000})
    for node in sim.followers():
        node.append.hold()
    asker = Asker(sim, sim.leader())
    sent = [asker.tell_send(b"m", topic, pid=PID) for topic in ("T", "own", "T")]
    sim.loop.run_for(0.1)
    sim.heal()
    assert [asker.answer(opaque)[0] for opaque in sent] == [OK] * 3
    assert (stored(sim), stored(sim, "own")) == ([b"m"], [b"m"])


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_an_unanswered_send_of_a_named_session_is_repeated_by_that_alone(cluster: Made, place: str) -> None:
    sim = cluster(users=False)
    leader, followers = sim.leader(), sim.followers()
    asker = Asker(sim, leader if place == "leader" else followers[0])
    for node in followers:
        node.append.hold()
    assert asker.send(b"m", key="K", pid=PID) == UNKNOWN
    sim.heal()
    sim.settle()
    assert asker.send(b"m", key="K") == OK
    assert asker.send(b"m", key="K", pid=PID) == OK
    assert stored(sim) == [b"m", b"m"]


# --- attempts of staged writes ---


@pytest.mark.parametrize("how", ["slice", "send"])
def test_a_sequence_of_another_s_attempt_cannot_be_taken(cluster: Made, how: str) -> None:
    """By a user who may send to the topic, but has no right to the write's name."""
    sim = cluster(users=True)
    owner, attacker = Asker(sim, sim.leader(), SHOP), Asker(sim, sim.followers()[0], EVE)
    attempt = owner.open()
    if how == "slice":
        code, remark, ext = attacker.stage(attempt, 1, b"x")
        assert (code, remark.replace(str(attempt), "77"), ext) == attacker.stage(77, 1, b"x")
        assert code == ILLEGAL
    else:
        assert attacker.send(b"x", "staged", pid=SLICES + attempt.to_bytes(8, "big")) == OK
    assert owner.stage(attempt, 1, b"a", b"b")[0] == OK
    assert owner.stage(attempt, 2, b"c")[0] == OK
    assert owner.commit_write((attempt, 3)) == OK
    sim.loop.run_until(lambda: len(sim.leader().bodies("staged")) >= 3, 20, "the copies")
    assert stored(sim, "staged") == [b"a", b"b", b"c"] + ([b"x"] if how == "send" else [])


def test_without_users_a_plain_send_takes_nothing_from_an_attempt(cluster: Made) -> None:
    sim = cluster(users=False)
    owner, attacker = Asker(sim, sim.leader()), Asker(sim, sim.leader())
    attempt = owner.open()
    assert attacker.send(b"x", "staged", pid=SLICES + attempt.to_bytes(8, "big"), seq=HUGE, low=HUGE) == OK
    assert attacker.send(b"x", "staged", pid=SLICES + attempt.to_bytes(8, "big"), seq=HUGE + 1) == OK
    assert owner.stage(attempt, 1, b"a", b"b")[0] == OK
    assert owner.commit_write((attempt, 2)) == OK
    sim.loop.run_until(lambda: len(sim.leader().bodies("staged")) == 4, 20, "the copies")


@pytest.mark.parametrize("topic", ["staged", "T"])
def test_without_users_a_taken_sequence_is_refused_and_never_answered_as_stored(cluster: Made, topic: str) -> None:
    sim = cluster(users=False)
    owner, attacker = Asker(sim, sim.leader()), Asker(sim, sim.followers()[0])
    attempt = owner.open()
    ext = {"attempt": str(attempt), "sequence": "1", "topic": topic, "queueId": "0"}
    bodies = [BatchItem(0, b"a" if topic == "T" else b"x", b"")]
    assert attacker.ask(RequestCode.STAGE_MESSAGES, ext, build_batch(bodies))[0] == OK
    code, remark, _ = owner.stage(attempt, 1, b"a")
    assert (code, "other messages" in remark) == (ILLEGAL, True)


@pytest.mark.parametrize("users", [False, True], ids=["nobody", "users"])
def test_a_slice_that_comes_again_after_a_failover_is_answered_as_stored(cluster: Made, users: bool) -> None:
    sim = cluster(users=users)
    who = SHOP if users else None
    old = sim.leader()
    owner = Asker(sim, sim.followers()[0], who)
    attempt = owner.open()
    assert owner.stage(attempt, 1, b"a", b"b")[0] == OK
    old.kill(power=False)
    sim.leader(besides=old)
    again = Asker(sim, sim.leader(), who)
    assert again.stage(attempt, 1, b"a", b"b")[0] == OK
    assert again.stage(attempt, 1, b"a", b"c")[0] == ILLEGAL
    assert again.commit_write((attempt, 2)) == OK
    sim.loop.run_until(lambda: len(sim.leader().bodies("staged")) == 2, 20, "the copies")
    assert stored(sim, "staged") == [b"a", b"b"]


# --- unanswered sends, and topics with dedup=strict ---


def test_an_unanswered_send_is_repeated_by_its_user_alone(cluster: Made) -> None:
    sim = cluster(users=True)
    node = sim.leader()
    shop, mill = Asker(sim, node, SHOP), Asker(sim, node, MILL)
    for follower in sim.followers():
        follower.append.hold()
    assert shop.send(EQUAL_CRC[0], key="K") == UNKNOWN
    sim.heal()
    sim.settle()
    assert mill.send(EQUAL_CRC[0], key="K") == OK
    assert shop.send(EQUAL_CRC[1], key="K") == OK, "another body of the same CRC"
    assert stored(sim) == sorted([EQUAL_CRC[0]] * 2 + [EQUAL_CRC[1]])
    assert shop.send(EQUAL_CRC[0], key="K") == OK
    assert len(stored(sim)) == 3, "it was the repetition"


def test_a_strict_topic_compares_user_key_and_body(cluster: Made) -> None:
    sim = cluster(users=True)
    shop, mill = Asker(sim, sim.leader(), SHOP), Asker(sim, sim.followers()[0], MILL)
    for _ in range(2):
        for body in EQUAL_CRC:
            assert shop.send(body, "S", key="K") == OK
        assert mill.send(EQUAL_CRC[0], "S", key="K") == OK
    assert stored(sim, "S") == sorted([EQUAL_CRC[0]] * 2 + [EQUAL_CRC[1]])


# --- levels ---


class Sent:
    """Sends, a commit and a slice, each of which is to be recognised when it comes again."""

    def __init__(self, sim: SimCluster, who: Credentials | None) -> None:
        self.sim, self.who = sim, who
        asker = Asker(sim, sim.leader(), who)
        self.attempt = asker.open()
        self.all_again(sim.leader())

    def all_again(self, node: SimNode) -> None:
        asker = Asker(self.sim, node, self.who)
        assert asker.send(b"m", key="K", pid=PID, seq=3) == OK
        assert asker.send(b"s", "S", key="K") == OK
        code, remark, _ = asker.stage(self.attempt, 1, b"a", b"b")
        assert code == OK, remark

    def check(self) -> None:
        asker = Asker(self.sim, self.sim.leader(), self.who)
        assert stored(self.sim) == [b"m"]
        assert stored(self.sim, "S") == [b"s"]
        assert asker.commit_write((self.attempt, 2)) == OK
        self.sim.loop.run_until(lambda: len(self.sim.leader().bodies("staged")) == 2, 20, "the copies")


@pytest.mark.parametrize("users", [False, True], ids=["nobody", "users"])
def test_what_is_repeated_across_the_level_is_recognised(cluster: Made, users: bool) -> None:
    sim = cluster(users=users, level=OWNERS_LEVEL - 1)
    sent = Sent(sim, SHOP if users else None)
    sent.all_again(sim.followers()[0])
    finalize(sim)
    for node in sim.running:
        sent.all_again(node)
    old = sim.leader()
    old.kill(power=False)
    sent.all_again(sim.leader(besides=old))
    sent.check()


def test_a_commit_from_before_the_level_moves_nothing_back(cluster: Made) -> None:
    sim = cluster(users=False, level=OWNERS_LEVEL - 1)
    asker = Asker(sim, sim.leader())
    assert asker.commit_offset(3, PID, 1) == OK
    assert asker.commit_offset(5, PID, 2) == OK
    assert asker.commit_offset(8, PID, 4, 2) == OK
    assert asker.send(b"m", pid=PID[::-1], seq=3, low=3) == OK
    finalize(sim)
    assert asker.commit_offset(5, PID, 2) == OK, "it was done"
    assert asker.commit_offset(3, PID, 1) == INVALID, "its sender has settled it"
    assert asker.send(b"m", pid=PID, seq=2) == OK, "a row of a commit is no send"
    assert asker.commit_offset(9, PID[::-1], 3, 3) == OK, "a row of a send is no commit"
    assert stored(sim) == [b"m", b"m"]
    assert sim.leader().state.offset("g", sim.leader().state.topics["T"].id, 0) == 9


def test_what_is_under_way_while_the_level_rises_is_recognised(cluster: Made) -> None:
    sim = cluster(users=False, level=OWNERS_LEVEL - 1, **{"send.deadline_ms": 20_000})
    leader = sim.leader()
    asker, again = Asker(sim, leader), Asker(sim, leader)
    followers = sim.followers()
    before = leader.raw.commit_index
    sim.propose(leader, Finalize(OWNERS_LEVEL))
    sim.loop.run_until(lambda: leader.raw.commit_index > before, 10, every_s=0.0001)
    assert leader.state.level < OWNERS_LEVEL
    for node in followers:
        node.append.hold()
    first = [asker.tell_send(b"m", key="K", pid=PID), asker.tell_send(b"s", "S", key="K")]
    sim.loop.run_until(lambda: leader.state.level == OWNERS_LEVEL, 10)
    assert not any(opaque in asker.path.replies for opaque in first), "the sends are behind the level in the log"
    second = [again.tell_send(b"m", key="K", pid=PID), again.tell_send(b"s", "S", key="K")]
    sim.heal()
    assert [asker.answer(opaque)[0] for opaque in first] == [OK, OK]
    assert [again.answer(opaque)[0] for opaque in second] == [OK, OK]
    assert stored(sim) == [b"m"]
    assert stored(sim, "S") == [b"s"]


def test_the_way_back_below_the_level_is_open(cluster: Made) -> None:
    """Every node runs the newer version and then the older one, in a cluster whose level was not raised."""
    sim = cluster(users=False, level=OWNERS_LEVEL - 1)
    sent = Sent(sim, None)
    for level in (OWNERS_LEVEL - 1, OWNERS_LEVEL, OWNERS_LEVEL - 1):
        for node in list(sim.nodes.values()):
            restart(sim, node, level)
            sent.all_again(node)
    sent.check()
