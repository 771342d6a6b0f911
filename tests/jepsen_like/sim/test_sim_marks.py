"""Marks in the bodies of messages: how they are found in bytes, who may read them, and the users who try to."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jepsen_like.marks import MarkedStream, mark_of, marks_in
from jepsen_like.sim.checks.monitor import Monitor
from jepsen_like.sim.scripted import ScriptedWorld
from jepsen_like.sim.users.access_check import AccessCheck
from jepsen_like.sim.users.attackers import ATTACKS, attacks_of
from jepsen_like.sim.users.mark_check import GRACE_S, REPLY_TO, MarkCheck
from raftlog.types import NodeId
from raftmq_wire.codec import FLAG_RESPONSE, encode_frame
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from statemachine.access.access_commands import ChangeUser, CreateUser, Origin, RemoveRules, SetAuthMode, SetRules
from statemachine.commands import Command

ORIGIN = Origin(0, "root", "")
ANN = Credentials("ann", "first")
CLIENT, NODE = ("10.0.1.7", 40001), ("10.0.0.1", 10911)
OWN_WORK = "demand 1\nmalice 6"
OPTIONS = "users=1 transactions=1 delayed=1 failures=1 writes=1 ordered=1 repeats=1"


def answer(body: bytes, code: int = 0, flag: int = FLAG_RESPONSE) -> bytes:
    return encode_frame(code, 1, flag, ext={"queueId": "0"}, body=body)


def found_in(stream: MarkedStream, *pieces: bytes) -> list[tuple[int | None, list[str]]]:
    return [
        (None if header is None else header.code, topics) for piece in pieces for header, topics in stream.take(piece)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_mark_is_found_however_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    data = answer(b"nothing") + answer(b"x" + mark_of("a") + mark_of("b")) + answer(mark_of("a"), 39, 0)
    cuts = sorted(rng.sample(range(len(data)), 6))
    pieces = [data[at:end] for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert found_in(MarkedStream(), *pieces) == [(0, ["a", "b"]), (39, ["a"])]


def test_a_mark_in_bytes_that_are_no_frame_is_found_once_it_is_whole() -> None:
    mark, stream = mark_of("%RETRY%g"), MarkedStream()
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    assert found_in(stream, head + mark[:9], mark[9:] + b"rest", mark) == [(None, ["%RETRY%g"]), (None, ["%RETRY%g"])]


def test_a_mark_in_a_frame_that_never_ends_is_found_at_the_end() -> None:
    stream = MarkedStream()
    assert found_in(stream, answer(mark_of("a") + b"more")[:-1]) == []
    assert stream.rest() == ["a"]
    assert marks_in(b"<<mark:>> <<mark:a") == []


class Judged:
    """A check of marks over users that a test makes; `now_s` is the time in seconds."""

    def __init__(self) -> None:
        self.now_s, self.violations, self.linked = 0.0, list[str](), True
        access = AccessCheck(
            lambda checker, what: None,
            lambda: self.now_s,
            leader_of=lambda _: NodeId(1),
            reveal=lambda user_id, secret, key: secret.decode(),
        )
        state = SimpleNamespace(applied=SimpleNamespace(index=0))
        self._machine: Any = SimpleNamespace(
            node_id=NodeId(1), node=SimpleNamespace(state=state, raw=SimpleNamespace(commit_index=0))
        )
        self._access = access
        access.started(cast(Any, self._machine))
        self.check = MarkCheck(
            lambda checker, what: self.violations.append(what), lambda: self.now_s, access, lambda: self.linked
        )
        self.stream = self.check.watch(CLIENT, NODE)
        self.learn(CreateUser(ORIGIN, 1, "ann", False, True, b"first", "key"))

    def learn(self, command: Command, *, first_the_node: bool = False) -> None:
        if not first_the_node:
            self.apply()
        self._access.model.learn(self._machine.node.state.applied.index, [command])
        self._access.applied(self._machine, ())
        self._access.heard(self._machine)

    def apply(self) -> None:
        """The node applies an entry, which the model has not learned yet."""
        self._machine.node.state.applied.index += 1

    def allows(self, resource: str, action: str) -> None:
        self.learn(SetRules(ORIGIN, 1, [(1, resource, [action], [], True)]))

    def signs(self, who: Credentials = ANN) -> None:
        self.stream.received(encode_frame(34, 1, 0, ext=who.signed({}, b"{}"), body=b"{}"))

    def gets(self, topic: str, code: int = 0) -> bool:
        """True if nothing is wrong with a frame that contains the topic's mark."""
        self.violations.clear()
        self.stream.sent(answer(mark_of(topic), code, FLAG_RESPONSE if code == 0 else 0))
        return not self.violations


def test_nobody_reads_anything_before_he_has_signed() -> None:
    judged = Judged()
    judged.allows("Topic:t", "Sub")
    assert not judged.gets("t")
    judged.signs(Credentials("ann", "guessed"))
    assert not judged.gets("t")
    judged.signs()
    assert judged.gets("t")
    assert not judged.gets("u")
    assert judged.check.read == 1


@pytest.mark.parametrize("may", [True, False])
def test_what_a_node_does_by_an_entry_that_the_model_lacks_is_judged_later(may: bool) -> None:
    """Seed 964000031: the node had applied the new secret of a user, and served it in the same turn."""
    judged = Judged()
    judged.signs()
    judged.apply()
    assert judged.gets("t")
    judged.check.judge_doubts()
    assert judged.violations == []
    rule: list[Any] = [(1, "Topic:t" if may else "Topic:u", ["Sub"], [], True)]
    judged.learn(SetRules(ORIGIN, 1, rule), first_the_node=True)
    judged.check.judge_doubts()
    assert len(judged.violations) == (0 if may else 1)
    assert not judged.gets("v"), "at once again"


@pytest.mark.parametrize(
    ("resource", "action", "topic", "code", "may"),
    [
        ("Topic:t", "Get", "t", 0, True),
        ("Topic:t", "Pub", "t", 0, False),
        ("Topic:t", "Pub", "t", RequestCode.CHECK_TRANSACTION_STATE, True),
        ("Topic:t", "Sub", "t", RequestCode.CHECK_TRANSACTION_STATE, False),
        ("Group:g", "Sub", "%RETRY%g", 0, True),
        ("Topic:*", "Sub", "%DLQ%g", 0, False),
        ("Topic:t", "Sub", REPLY_TO + "ann", RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, True),
        ("*", "All", REPLY_TO + "bob", RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, False),
    ],
)
def test_who_may_read_a_mark(resource: str, action: str, topic: str, code: int, may: bool) -> None:
    judged = Judged()
    judged.allows(resource, action)
    judged.signs()
    assert judged.gets(topic, code) is may


def test_a_reply_may_go_astray_while_nodes_do_not_reach_each_other() -> None:
    """Seed 790000194: a node that had just started could not ask the node with the note of who waits."""
    judged, code = Judged(), RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    judged.signs()
    assert not judged.gets(REPLY_TO + "bob", code)
    judged.linked, judged.now_s = False, 10.0
    judged.check.look()
    assert judged.gets(REPLY_TO + "bob", code)
    assert not judged.gets("t"), "only replies are looked for on other nodes"
    judged.linked, judged.now_s = True, 10.0 + GRACE_S
    judged.check.look()
    assert judged.gets(REPLY_TO + "bob", code)
    judged.now_s += 0.01
    assert not judged.gets(REPLY_TO + "bob", code)


def test_a_right_that_is_gone_counts_for_a_moment() -> None:
    judged = Judged()
    judged.allows("Topic:t", "Sub")
    judged.signs()
    judged.now_s = 10.0
    judged.learn(RemoveRules(ORIGIN, 1, None, None))
    judged.now_s = 10.0 + GRACE_S
    assert judged.gets("t")
    judged.now_s = 10.1 + GRACE_S
    assert not judged.gets("t")
    assert "of ann" in judged.violations[0]


def test_a_node_may_know_a_new_secret_before_the_model() -> None:
    """Seed 760000144."""
    judged = Judged()
    judged.allows("Topic:t", "Sub")
    judged.signs(Credentials("ann", "second"))
    assert not judged.gets("t")
    judged.learn(ChangeUser(ORIGIN, 1, {"secret": [b"second", "key"]}))
    assert judged.gets("t")
    assert not judged.gets("u")


def test_a_node_that_has_not_applied_the_switch_to_enforce_is_open() -> None:
    """Seed 760000070."""
    judged = Judged()
    assert not judged.gets("t")
    judged.learn(SetAuthMode(ORIGIN, "enforce"))
    assert judged.gets("t"), "it was made a moment ago"
    judged.now_s = 0.1 + GRACE_S
    judged.learn(SetRules(ORIGIN, 1, [(1, "Topic:x", ["Sub"], [], True)]))
    judged.now_s += 0.1 + GRACE_S
    assert not judged.gets("t")


def test_attacks_that_wait_for_the_product_are_only_made_by_name() -> None:
    assert {attack.name for attack in attacks_of(())} == {attack.name for attack in ATTACKS if not attack.waits_for}
    assert [attack.name for attack in attacks_of(["recall", "stage"])] == ["recall", "stage"]
    with pytest.raises(KeyError):
        attacks_of(["none"])


@pytest.mark.ci
def test_a_script_with_attackers_is_clean() -> None:
    stage = ScriptedWorld(f"nodes 3 {OPTIONS}\nlead 1\nload 0.5\n{OWN_WORK}\nsettle\n")
    attackers, requesters, marks = stage.attackers, stage.requesters, stage.marks
    assert stage.run().violations == ()
    assert attackers is not None
    assert requesters is not None
    assert marks is not None
    assert sum(attackers.counts.values()) > 20
    assert requesters.got > 20
    assert marks.read > 20, "users read what they may"


def test_a_run_in_which_only_clients_count_reports_no_mark() -> None:
    monitor = Monitor(SimpleNamespace(now=0.0, events=0, stop=lambda: None), [NodeId(1)], black_box=True)  # type: ignore[arg-type]
    monitor.report("marks", "needs the model of the log")
    assert not monitor.violations
