"""Users and rules on whole nodes: who is let through, on which node, and what counts when a rule changes meanwhile."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.broker.access.guesses import EVERY_MS, FREE, QUIET_MS, WAITING_MAX
from cluster.broker.refusal import Reason, Refused
from cluster.peer.keyring import OPEN
from cluster.remoting.admission import HELD_MAX
from cluster.requests.table import ROWS
from cluster.runtime.peer_frames import Kind
from raftlog.types import NOBODY
from raftmq_wire.codec import decode_header
from raftmq_wire.codes import RequestCode
from raftmq_wire.signature import Credentials
from statemachine.consuming.groups import PutGroup
from statemachine.levels import OWNERS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import ClientPath, SimCluster, SimNode, codes
from tests.support.sim_users import (
    OPERATOR,
    OTHER,
    READ_T,
    ROOT,
    SEND_T,
    SHOP,
    add_user,
    answer,
    ask_admin,
    begin,
    key_file,
    pull,
    request,
    send,
    settle,
    with_key,
)


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimCluster]:
    with with_key(tmp_path) as made:
        made.create_topic("T")
        yield made


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_only_the_signature_of_a_user_with_the_right_is_let_through(sim: SimCluster, place: str) -> None:
    begin(sim)
    node = sim.leader() if place == "leader" else sim.followers()[0]
    path = node.connect()
    for opaque, (who, topic) in enumerate([(SHOP, "T"), (OTHER, "T"), (None, "T"), (SHOP, "U"), (ROOT, "T")], 1):
        path.ask(send(who, opaque, topic))
    assert [answer(sim, path, opaque) for opaque in range(1, 6)] == [0, 16, 16, 16, 0]
    assert "not signed" in path.replies[3][0][1]
    assert "no right to Pub on Topic:U" in path.replies[4][0][1]
    assert len(sim.leader().bodies("T")) == 2


def test_a_follower_that_lags_denies_nothing_that_was_allowed_before_the_request(sim: SimCluster) -> None:
    """A user, a rule and a secret count from their acknowledgement on, at each node. What is behind one keeps
    its place."""
    begin(sim, level=OWNERS_LEVEL)
    leader, late = sim.leader(), sim.followers()[0]
    paths = [late.connect() for _ in range(3)]
    late.apply.hold()
    assert ask_admin(sim, "create", "new", "new-secret", is_super=False, enabled=True) is None
    assert ask_admin(sim, "set_rules", "new", [[1, "Topic:T", ["Pub", "Sub"], [], True], READ_T[1]]) is None
    assert ask_admin(sim, "change", "shop", secret="other-secret") is None
    new, shop = Credentials("new", "new-secret"), Credentials("shop", "other-secret")
    assert "new" not in late.state.access.users
    route = request(new, RequestCode.GET_ROUTEINFO_BY_TOPIC, 2, {"topic": "T"})
    for each in (send(new, 1), route, send(new, 3, body=b"behind"), send(new, 4, "U")):
        paths[0].ask(each)
    paths[1].ask(send(shop, 1))
    for each in (send(Credentials("new", "wrong-one"), 1), send(None, 2)):
        paths[2].ask(each)
    sim.loop.run_for(0.3)
    assert not any(path.replies for path in paths)
    late.apply.release()
    assert [answer(sim, paths[0], opaque) for opaque in (1, 2, 3, 4)] == [0, 0, 0, 16]
    assert "no right to Pub on Topic:U" in paths[0].replies[4][0][1]
    assert [answer(sim, paths[1], 1), answer(sim, paths[2], 1), answer(sim, paths[2], 2)] == [0, 16, 16]
    assert [body for body in leader.bodies("T") if body == b"behind"] == [b"behind"]
    assert len(leader.bodies("T")) == 3


def test_without_a_leader_a_follower_cannot_tell_who_may_do_what(sim: SimCluster) -> None:
    begin(sim, level=OWNERS_LEVEL)
    late = sim.followers()[0]
    for node in sim.running:
        if node is not late:
            node.kill(power=False)
    path = late.connect()
    unknown = Credentials("new", "new-secret")
    path.ask(request(unknown, RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "T"}))
    path.ask(send(None, 2))
    assert [answer(sim, path, 1), answer(sim, path, 2)] == [14, 16]


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_connection_is_that_of_a_stranger_until_a_signature_was_right(sim: SimCluster, place: str) -> None:
    begin(sim)
    node = sim.leader() if place == "leader" else sim.followers()[0]
    path, asked = node.connect(), node.connect()
    proven: list[Any] = []
    node.running.serving.remoting.admission.proven.add(lambda path, _: proven.append(path))
    for opaque, who in enumerate([OTHER, None], 1):
        path.ask(send(who, opaque))
        assert answer(sim, path, opaque) == 16
    assert proven == []
    for opaque in (3, 4):
        path.ask(send(SHOP, opaque))
        assert answer(sim, path, opaque) == 0
    asked.ask(request(ROOT, RequestCode.GET_MAX_OFFSET, 1, {"topic": "T", "queueId": "0"}))
    assert answer(sim, asked, 1) == 0
    assert proven == [path, asked]


GUESSES = 1_000


def guess(sim: SimCluster, node: SimNode, opaque: int, paths: list[ClientPath]) -> None:
    """One more wrong secret of 10.0.0.9 for the user shop, on one of the connections, which are made again."""
    at = opaque % len(paths)
    if paths[at].closed:
        paths[at] = node.connect()
    paths[at].ask(send(Credentials("shop", f"guess {opaque}"), opaque))


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_guesser_is_slowed_and_nobody_else_for_long(sim: SimCluster, place: str) -> None:
    begin(sim)
    add_user(sim, "other", ("Topic:T", ["Pub"]))
    node = sim.leader() if place == "leader" else sim.followers()[0]
    running, guesses = node.running, cast("Any", node.running.serving.broker.guesses)
    checked: list[str] = []
    wrong = guesses.wrong
    guesses.wrong = lambda name, address: checked.append(name) or wrong(name, address)
    before = node.connect()
    before.ask(send(SHOP, 1))
    assert answer(sim, before, 1) == 0
    paths, begun_s = [node.connect() for _ in range(40)], sim.loop.now
    for opaque in range(GUESSES):
        guess(sim, node, opaque, paths)
        if opaque % 50 == 0:
            sim.loop.run_for(0.05)
    assert len(checked) <= FREE + 1 + (sim.loop.now - begun_s) * 1000 / EVERY_MS
    assert running.serving.broker.guesses.waiting <= WAITING_MAX
    asked_s, honest, third = sim.loop.now, node.connect(), node.connect()
    before.ask(send(SHOP, 2))
    third.ask(send(Credentials("other", "other-secret"), 3))
    honest.ask(send(SHOP, 4))
    honest.ask(send(SHOP, 5))
    assert (answer(sim, before, 2), answer(sim, third, 3)) == (0, 0)
    assert sim.loop.now - asked_s < 1, "neither who was proven before nor another user waits"
    assert (answer(sim, honest, 4), answer(sim, honest, 5)) == (0, 0)
    assert sim.loop.now - asked_s <= 5
    sim.loop.run_for(QUIET_MS / 1000)
    assert running.serving.broker.guesses.waiting == 0
    assert not running.serving.broker.guesses.must_wait("shop", "10.0.0.9")


@pytest.mark.parametrize("mode", ["off", "observe", "enforce"])
def test_a_guesser_of_a_supers_secret_is_slowed_in_every_mode(sim: SimCluster, mode: str) -> None:
    """Requests about users are judged in every mode, so that their answers tell a right secret from a wrong one."""
    begin(sim, mode)
    node, checked = sim.leader(), list[str]()
    guesses = cast("Any", node.running.serving.broker.guesses)
    wrong = guesses.wrong
    guesses.wrong = lambda name, address: checked.append(name) or wrong(name, address)
    begun_s = sim.loop.now
    for opaque in range(200):
        node.connect().ask(request(Credentials("root", f"guess {opaque}"), RequestCode.AUTH_LIST_USER, opaque, {}))
        if opaque % 50 == 49:
            sim.loop.run_for(0.05)
    assert FREE <= len(checked) <= FREE + 1 + (sim.loop.now - begun_s) * 1000 / EVERY_MS


def test_a_connection_with_a_wrong_signature_ends_once_many_were_wrong(sim: SimCluster) -> None:
    begin(sim)
    node = sim.leader()
    path = node.connect()
    for opaque in range(FREE):
        path.ask(send(OTHER, opaque))
        assert answer(sim, path, opaque) == 16
    assert not path.closed
    for opaque in range(FREE, FREE + 3):
        path.ask(send(OTHER, opaque))
    assert [answer(sim, path, opaque) for opaque in range(FREE, FREE + 1)] == [16]
    sim.loop.run_until(lambda: path.closed, 10, "the end of the connection")


def test_what_waits_with_a_signature_is_bounded(sim: SimCluster) -> None:
    begin(sim)
    node = sim.leader()
    paths = [node.connect() for _ in range(2)]
    for opaque in range(FREE + 2):
        paths[0].ask(send(OTHER, opaque))
    for opaque in range(100, 100 + 2 * HELD_MAX):
        paths[1].ask(send(SHOP, opaque, body=bytes(1000)))
    answers = [answer(sim, paths[1], opaque) for opaque in range(100, 100 + 2 * HELD_MAX)]
    assert answers == [0] * HELD_MAX + [2] * HELD_MAX


def test_the_body_and_every_field_are_signed(sim: SimCluster) -> None:
    begin(sim)
    path = sim.leader().connect()
    frame = send(SHOP, 1, body=b"one hundred")
    path.ask(frame.replace(b"one hundred", b"two hundred"))
    path.ask(send(SHOP, 2).replace(b'"e":"0"', b'"e":"1"'))
    assert [answer(sim, path, opaque) for opaque in (1, 2)] == [16, 16]


def test_what_was_signed_once_can_be_sent_again(sim: SimCluster) -> None:
    """The signature has neither a time nor a nonce: only encryption of the connection keeps it from strangers."""
    begin(sim)
    first, second = sim.leader().connect(), sim.leader().connect()
    first.ask(frame := send(SHOP, 1))
    second.ask(frame)
    assert [answer(sim, path, 1) for path in (first, second)] == [0, 0]


@pytest.mark.parametrize("mode", ["off", "enforce"])
@pytest.mark.parametrize("place", ["leader", "follower"])
def test_administrators_requests_need_tls_where_the_operator_says_so(tmp_path: Path, mode: str, place: str) -> None:
    overrides: dict[str, Any] = {"auth.key_file": str(key_file(tmp_path)), "auth.admin_needs_tls": True}
    with SimCluster(7, **overrides) as sim:
        sim.create_topic("T")
        begin(sim, mode)
        node = sim.leader() if place == "leader" else sim.followers()[0]
        plain, safe = node.connect(), node.connect()
        safe.secure = True
        seen = request(ROOT, RequestCode.GET_TOPIC_CONFIG, 1, {"topic": "T"})
        plain.ask(seen)
        assert answer(sim, plain, 1) == 0
        codes_ = sorted(verb.code for verb in ROWS if verb.is_for_administrators)
        for opaque, code in enumerate(codes_, 10):  # what was read is sent again, as something else
            plain.ask(request(ROOT, code, opaque, {"topic": "T"}))
            assert answer(sim, plain, opaque) == 16
            assert "auth.admin_needs_tls" in plain.replies[opaque][0][1]
        assert "T" in sim.leader().state.topics
        plain.ask(send(SHOP, 2))
        assert answer(sim, plain, 2) == 0
        safe.ask(request(ROOT, RequestCode.DELETE_TOPIC_IN_BROKER, 3, {"topic": "T"}))
        assert answer(sim, safe, 3) == 0
        assert "T" not in sim.leader().state.topics


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_client_whose_clock_is_wrong_is_let_through(sim: SimCluster, minutes: int) -> None:
    """A signature has no time of its own; the message's time of birth is signed like every field, and not judged."""
    begin(sim)
    path = sim.leader().connect()
    path.ask(send(SHOP, 1, born_ms=sim.leader().clock.wall_ms() + 60_000 * minutes))
    assert answer(sim, path, 1) == 0


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_nothing_is_denied_before_it_is_enforced(sim: SimCluster, mode: str) -> None:
    begin(sim)
    assert ask_admin(sim, "set_mode", mode) is None
    settle(sim)
    path = sim.followers()[0].connect()
    for opaque, who in enumerate([None, OTHER, SHOP], 1):
        path.ask(send(who, opaque))
    assert [answer(sim, path, opaque) for opaque in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("mode", ["off", "observe", "enforce"])
def test_users_are_changed_by_a_super_alone_in_every_mode(sim: SimCluster, mode: str) -> None:
    begin(sim)
    assert ask_admin(sim, "set_mode", mode) is None
    settle(sim)
    path = sim.followers()[0].connect()
    body = json.dumps({"username": "new", "password": "new-secret", "userType": "Super"}).encode()
    for opaque, who in enumerate([None, OTHER, SHOP, ROOT], 1):
        path.ask(request(who, RequestCode.AUTH_CREATE_USER, opaque, {"username": "new"}, body))
    assert [answer(sim, path, opaque) for opaque in (1, 2, 3, 4)] == [16, 16, 16, 0]
    newest = next(sim.leader().state.access.audit(1 << 60, 1))
    assert (newest.user, newest.address, newest.about) == ("root", "10.0.0.9", "User:new")


def test_the_first_super_is_not_made_by_a_stranger(sim: SimCluster) -> None:
    path = sim.leader().connect()
    path.ask(request(None, RequestCode.AUTH_CREATE_USER, 1, {"username": "me"}, b'{"password":"my-secret"}'))
    assert answer(sim, path, 1) == 16
    assert not sim.leader().state.access.users


def test_the_leader_judges_again_what_was_forwarded(sim: SimCluster) -> None:
    begin(sim)
    through = sim.followers()[0]
    through.apply.hold()
    assert ask_admin(sim, "remove_rules", "shop", None, None) is None
    assert through.state.access.users["shop"].rules, "this node has not heard of it"
    path = through.connect()
    path.ask(send(SHOP, 1))
    assert answer(sim, path, 1) == 16
    through.apply.release()
    assert sim.leader().bodies("T") == []


def test_a_node_that_has_not_proven_the_secret_names_nobody(sim: SimCluster) -> None:
    """A forged FORWARD with the id of the Super, on a link that anybody could have opened."""
    begin(sim)
    leader, liar = sim.leader(), sim.followers()[0]
    answers: list[bytes] = []
    liar.hear(frame=lambda peer, kind, header, payload: answers.append(payload))
    root = leader.state.access.users["root"].id
    header = [77, "10.0.0.9", 1, "broker", None, leader.raw.term, root]
    for keyring in (OPEN, leader.transport.keyring):
        leader.transport.keyring = keyring
        leader.run(
            leader.running.serving.remoting.forwarder.on_frame, liar.node_id, Kind.FORWARD, header, send(None, 1)[4:]
        )
        sim.loop.run_until(lambda: len(answers) == (1 if keyring is OPEN else 2), 5)  # noqa: B023
    told = [decode_header(answer[4], answer[8 : 8 + int.from_bytes(answer[5:8], "big")]).code for answer in answers]
    assert told == [16, 0]


def test_a_node_that_hears_no_leader_says_so(sim: SimCluster) -> None:
    begin(sim)
    lonely = sim.followers()[0]
    sim.isolate(lonely)
    sim.loop.run_for(11.0)
    path = lonely.connect()
    path.ask(pull(SHOP, 1))
    assert answer(sim, path, 1) == 14
    assert "auth.stale_ms_max" in path.replies[1][0][1]


def test_a_node_that_heard_no_leader_since_it_started_says_so(sim: SimCluster) -> None:
    """The time that its machine is up says nothing, whether it is long or short."""
    begin(sim)
    lonely = sim.followers()[0]
    sim.isolate(lonely)
    lonely.kill(power=False)
    lonely.start()
    assert lonely.clock.monotonic_ms() < lonely.running.config.auth.stale_ms_max
    path = lonely.connect()
    path.ask(pull(SHOP, 1))
    assert answer(sim, path, 1) == 14
    assert "no leader was heard since this node started" in path.replies[1][0][1]


def test_a_leader_that_stepped_down_has_heard_of_all_changes_until_then(sim: SimCluster) -> None:
    begin(sim)
    old = sim.leader()
    sim.loop.run_for(2 * old.running.config.auth.stale_ms_max / 1000)
    assert old.running.serving.services.writes_open()
    old.run(old.raw.raft.become_follower, old.raw.term, NOBODY)
    sim.loop.run_until(lambda: not old.running.serving.services.writes_open(), 5)
    assert old.raw.leader_id == NOBODY
    assert old.running.serving.unheard() == ""


def parked(sim: SimCluster, node: SimNode) -> ClientPath:
    assert ask_admin(sim, "set_rules", "shop", READ_T) is None
    settle(sim)
    sim.propose(sim.leader(), PutGroup({"name": "g"}, True))
    sim.loop.run_until(lambda: all("g" in each.state.groups for each in sim.running), 5)
    path = node.connect()
    path.ask(pull(SHOP, 1))
    sim.loop.run_until(lambda: node.running.serving.broker.pulls.long_polls.count == 1, 5, "the pull waits")
    return path


@pytest.mark.parametrize("how", ["rule", "user", "disabled", "secret"])
@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_pull_that_waits_is_answered_16_when_its_user_may_no_more(sim: SimCluster, how: str, place: str) -> None:
    begin(sim)
    node = sim.leader() if place == "leader" else sim.followers()[0]
    path = parked(sim, node)
    change: dict[str, tuple[Any, ...]] = {
        "rule": ("remove_rules", "shop", 1, "Group:g"),
        "user": ("remove", "shop"),
    }
    if how in change:
        assert ask_admin(sim, *change[how]) is None
    else:
        named = {"enabled": False} if how == "disabled" else {"secret": "another-secret"}
        leader, told = sim.leader(), list[Refused | None]()
        leader.run(lambda: leader.running.serving.broker.user_admin.change(OPERATOR, "shop", told.append, **named))
    began = sim.loop.now
    assert answer(sim, path, 1) == 16
    assert sim.loop.now - began < 1.0
    if how != "rule":
        sim.loop.run_until(lambda: path.closed, 1, "the connection is closed")


@pytest.mark.parametrize("given_again", [True, False])
def test_a_follower_denies_no_waiting_pull_by_a_state_that_may_be_over(sim: SimCluster, given_again: bool) -> None:
    """Seed 940070005: a follower came through a time without the right, which the leader had given again."""
    begin(sim, level=OWNERS_LEVEL)
    late = sim.followers()[0]
    path = parked(sim, late)
    assert ask_admin(sim, "remove_rules", "shop", None, None) is None
    assert answer(sim, path, 1) == 19, "no message came"
    late.apply.hold()
    if given_again:
        assert ask_admin(sim, "set_rules", "shop", [[1, "Topic:T", ["Pub", "Sub"], [], True], READ_T[1]]) is None
    path.ask(pull(SHOP, 2))
    sim.loop.run_for(0.3)
    late.apply.release()
    writer = sim.leader().connect()
    writer.ask(send(ROOT, 9))
    assert answer(sim, path, 2) == (0 if given_again else 16)


def test_a_pull_that_came_while_nothing_was_judged_is_asked_again_and_judged_then(sim: SimCluster) -> None:
    begin(sim, "off")
    assert ask_admin(sim, "set_rules", "shop", READ_T) is None
    path, stranger = sim.leader().connect(), sim.leader().connect()
    path.ask(pull(SHOP, 1))
    stranger.ask(pull(None, 1))
    sim.loop.run_for(0.1)
    assert ask_admin(sim, "set_mode", "enforce") is None
    assert [answer(sim, one, 1) for one in (path, stranger)] == [19, 19], "no message came"
    path.ask(pull(SHOP, 2))
    stranger.ask(pull(None, 2))
    assert answer(sim, stranger, 2) == 16
    assert not path.replies.get(2)
    assert ask_admin(sim, "set_rules", "shop", [[1, "Topic:T", ["Pub", "Sub"], [], True]]) is None
    path.ask(send(SHOP, 3))
    assert [answer(sim, path, opaque) for opaque in (3, 2)] == [0, 0]


def test_500_pulls_that_wait_are_all_answered_16_within_a_second(sim: SimCluster) -> None:
    begin(sim)
    node = sim.followers()[0]
    first = parked(sim, node)
    paths = [node.connect() for _ in range(50)]
    for path in paths:
        for opaque in range(10):
            path.ask(pull(SHOP, opaque))
    sim.loop.run_until(lambda: node.running.serving.broker.pulls.long_polls.count == 501, 5, "all wait")
    assert ask_admin(sim, "remove", "shop") is None
    began = sim.loop.now
    sim.loop.run_until(lambda: all(len(path.replies) == 10 for path in paths), 5, "all are answered")
    assert sim.loop.now - began < 1.0
    assert {code for path in (*paths, first) for opaque in path.replies for code in codes(path, opaque)} == {16}
    sim.loop.run_until(lambda: all(path.closed for path in paths), 1, "their connections are closed")


def test_a_message_after_the_change_is_not_given_to_who_waits(sim: SimCluster) -> None:
    begin(sim)
    follower = sim.followers()[0]
    path = parked(sim, follower)
    follower.apply.hold()
    assert ask_admin(sim, "remove_rules", "shop", 1, "Group:g") is None
    writer = sim.leader().connect()
    writer.ask(send(ROOT, 9))
    assert answer(sim, writer, 9) == 0
    follower.apply.release()
    assert answer(sim, path, 1) == 16
    assert len(path.replies[1]) == 1


def test_a_pull_that_waits_for_its_topic_is_judged_again(sim: SimCluster) -> None:
    begin(sim, "observe")
    assert ask_admin(sim, "set_rules", "shop", [[1, "*", ["All"], [], True]]) is None
    settle(sim)
    follower = sim.followers()[0]
    follower.apply.hold()
    fields = {"name": "new", "read_queues": 2, "write_queues": 2, "perm": 6}
    sim.propose(sim.leader(), CreateTopic(fields, False))
    path = follower.connect()
    path.ask(pull(SHOP, 1, topic="new"))
    sim.loop.run_for(0.01)
    assert ask_admin(sim, "set_mode", "enforce") is None
    assert ask_admin(sim, "remove_rules", "shop", None, None) is None
    writer = sim.leader().connect()
    writer.ask(send(ROOT, 9, "new"))
    assert answer(sim, writer, 9) == 0
    follower.apply.release()
    assert answer(sim, path, 1) == 16


def test_a_user_made_again_does_not_get_the_old_connection(sim: SimCluster) -> None:
    begin(sim)
    path = parked(sim, sim.followers()[0])
    assert ask_admin(sim, "remove", "shop") is None
    assert ask_admin(sim, "create", "shop", "shop-secret", is_super=False, enabled=True) is None
    assert answer(sim, path, 1) == 16
    again = sim.leader().connect()
    again.ask(send(SHOP, 1))
    assert answer(sim, again, 1) == 16, "no rule came along"


def test_a_node_without_the_key_takes_no_signature_and_says_why(tmp_path: Path) -> None:
    with with_key(tmp_path) as sim:
        sim.create_topic("T")
        begin(sim)
        node = sim.followers()[0]
        key_file(tmp_path, b"x" * 32)
        node.run(node.running.serving.broker.secrets.look)
        path = node.connect()
        path.ask(send(SHOP, 1))
        assert answer(sim, path, 1) == 14
        assert "does not have the key" in path.replies[1][0][1]
        key_file(tmp_path)
        node.run(node.running.serving.broker.secrets.look)
        path.ask(send(SHOP, 2))
        assert answer(sim, path, 2) == 0


def test_rules_go_over_the_wire_as_mqadmin_sends_them(sim: SimCluster) -> None:
    begin(sim)
    path = sim.followers()[0].connect()
    entry = {"resource": "Topic:U*", "actions": ["Pub", "Sub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}
    acl = {"subject": "User:shop", "policies": [{"entries": [entry]}]}
    path.ask(request(ROOT, RequestCode.AUTH_CREATE_ACL, 1, {"subject": "User:shop"}, json.dumps(acl).encode()))
    assert answer(sim, path, 1) == 0
    path.ask(request(ROOT, RequestCode.AUTH_DELETE_ACL, 2, {"subject": "User:shop", "resource": "Topic:T"}))
    assert answer(sim, path, 2) == 0
    assert [str(rule.resource) for rule in sim.leader().state.access.users["shop"].rules] == ["Topic:U*"]
    path.ask(request(ROOT, RequestCode.AUTH_CREATE_ACL, 3, {"subject": "User:nobody"}, json.dumps(acl).encode()))
    assert answer(sim, path, 3) == 22
    path.ask(request(ROOT, RequestCode.AUTH_DELETE_USER, 4, {"username": "root"}))
    assert answer(sim, path, 4) == 604, "the last Super"


def test_nothing_is_enforced_without_a_key_or_without_proven_peers(sim: SimCluster, tmp_path: Path) -> None:
    begin(sim, "observe")
    leader = sim.leader()
    keyring = leader.transport.keyring
    leader.transport.keyring = OPEN
    with pytest.raises(Refused, match="nodes do not prove"):
        ask_admin(sim, "set_mode", "enforce")
    leader.transport.keyring = keyring
    key_file(tmp_path, b"x" * 32)
    leader.run(leader.running.serving.broker.secrets.look)
    with pytest.raises(Refused, match="does not have the key"):
        ask_admin(sim, "set_mode", "enforce")
    assert leader.state.access.mode == "observe"


class Race:
    """Sends at every node while the right to them is given and taken, and leaders come and go."""

    def __init__(self, sim: SimCluster, seed: int) -> None:
        self.sim = sim
        self.rng = random.Random(seed)
        self.sent: dict[bytes, tuple[ClientPath, int]] = {}
        self.forbidden: set[bytes] = set()
        """Sends that began when the right was gone for certain, while it is."""
        self.may = "yes"
        """yes, no, or unclear while a change is under way."""
        self.opaque = 100

    def send(self) -> None:
        path = self.rng.choice(self.sim.running).connect()
        self.opaque += 1
        body = b"%d %b" % (self.opaque, self.may.encode())
        path.ask(send(SHOP, self.opaque, body=body))
        self.sent[body] = path, self.opaque
        if self.may == "no":
            self.forbidden.add(body)

    def change(self) -> None:
        """Gives the right, or takes it; repeated until the log has said so."""
        gives, self.may = self.may == "no", "unclear"
        if gives:  # what waits for a leader may be allowed by now
            answered = {body for body in self.forbidden if codes(*self.sent[body])}
            self.forbidden = answered
        method, arguments = ("set_rules", ([SEND_T],)) if gives else ("remove_rules", (1, "Topic:T"))
        while True:
            leader = self.sim.leader()
            told: list[Refused | None] = []
            with contextlib.suppress(Refused):
                leader.run(
                    partial(
                        getattr(leader.running.serving.broker.user_admin, method),
                        OPERATOR,
                        "shop",
                        *arguments,
                        told.append,
                    )
                )
                end = self.sim.loop.now + 2.0
                while not told and self.sim.loop.now < end:
                    self.sim.loop.run_for(0.01)
                    if self.rng.random() < 0.1:
                        self.send()
            if told and (told[0] is None or told[0].reason is Reason.NOT_FOUND):
                break
        self.may = "yes" if gives else "no"

    def disturb(self) -> None:
        leader = self.sim.leader()
        if self.rng.random() < 0.5:
            leader.transfer(self.rng.choice(self.sim.followers()).node_id)
        else:
            leader.kill(power=False)
            self.sim.loop.run_for(0.3)
            leader.start()


@pytest.mark.parametrize("seed", range(9_100, 9_106))
def test_a_right_that_is_gone_lets_nothing_through_while_leaders_change(tmp_path: Path, seed: int) -> None:
    with with_key(tmp_path, seed) as sim:
        sim.create_topic("T")
        begin(sim)
        race = Race(sim, seed)
        for _ in range(60):
            act = race.rng.choices([race.send, race.change, race.disturb], [10, 2, 1])[0]
            act()
            sim.loop.run_for(race.rng.random() * 0.05)
        sim.loop.run_for(5.0)
        sim.settle()
        sim.check_equal()
        stored = {*sim.leader().bodies("T")}
        assert race.forbidden & stored == set()
        assert {code for body in race.forbidden for code in codes(*race.sent[body])} <= {14, 16}
        assert stored
        assert race.forbidden, "the race had both"


def test_modes_that_change_a_hundred_times_under_load_stop_nobody_who_may(sim: SimCluster) -> None:
    begin(sim)
    right, wrong = [node.connect() for node in sim.running], [node.connect() for node in sim.running]
    for turn in range(100):
        mode = ("observe", "enforce")[turn % 2]
        for opaque, (one, other) in enumerate(zip(right, wrong, strict=True), 10 * turn):
            one.ask(send(SHOP, opaque, body=b"right"))
            other.ask(send(OTHER, opaque, body=b"%b" % mode.encode()))
        assert ask_admin(sim, "set_mode", mode) is None
        if turn % 20 == 19:
            settle(sim)
            wrong = [node.connect() for node in sim.running]  # after many wrong signatures a connection ends
            for opaque, path in enumerate(wrong, 10 * turn + 5):
                path.ask(send(OTHER, opaque, body=b"certainly denied"))
                assert answer(sim, path, opaque) == 16
    for turn in range(100):
        for opaque, path in enumerate(right, 10 * turn):
            assert answer(sim, path, opaque) == 0
    assert b"certainly denied" not in sim.leader().bodies("T")
    sim.settle()
    sim.check_equal()
