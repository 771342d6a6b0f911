"""Clients that mix kinds of commits, that change topics, and that mean harm: what they break is found."""

from __future__ import annotations

import pytest

from cluster.broker.pulls.pull_service import Pulls
from cluster.remoting.connection.server import RemotingConnection
from cluster.replication.offset_order import Effects
from cluster.replication.pending_requests import TopicBarriers
from cluster.requests.table import VERBS
from jepsen_like.sim.hostile.senseless_requests import CODES, LEFT_OUT, draw_odd
from jepsen_like.sim.options import Options, draw, stream
from jepsen_like.sim.scripted import play
from raftmq_wire.codes import RequestCode
from statemachine.removal_slices import DeleteGroup

TIDE = """
nodes 3
lead 1
tide 1 make
tide 1 commit query
{}
wait 0.3
tide 1 query
settle
"""


def found(script: str) -> list[tuple[str, str]]:
    return [(violation.checker, violation.what) for violation in play(script).violations]


@pytest.mark.parametrize("steps", ["tide 1 oneway commit query", "tide 1 oneway pull delete\ntide 1 make query"])
def test_offsets_move_in_the_order_of_their_connection(steps: str) -> None:
    assert found(TIDE.format(steps)) == []


def test_an_answered_commit_that_a_oneway_of_before_overtakes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Effects, "take_before", lambda effects, command: [])
    ((checker, what), *_) = found(TIDE.format("tide 1 oneway commit query"))
    assert checker == "order"
    assert "although" in what


def test_offsets_that_outlive_their_group_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Effects.take_before
    monkeypatch.setattr(
        Effects,
        "take_before",
        lambda effects, command: [] if isinstance(command, DeleteGroup) else kept(effects, command),
    )
    assert found(TIDE.format("tide 1 oneway delete make"))[0][0] == "order"


def test_topics_come_and_go_while_messages_flow() -> None:
    assert found("nodes 3 remakes=1\nlead 1\nremake 4\nsettle\n") == []


def test_messages_for_what_a_topic_was_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicBarriers, "raise_for", lambda _, commands: [])
    assert found("nodes 3 remakes=1\nlead 1\nremake 4\nsettle\n")[0][0] in ("topics", "node", "digest")


def test_a_topic_that_takes_nothing_and_is_told_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.broker.sends.send_service.PERM_WRITE", 4)
    assert found("nodes 3 remakes=1\nlead 1\nremake 4\nsettle\n")[0][0] == "topics"


def test_a_request_has_the_answer_that_the_script_expects() -> None:
    script = "nodes 3\nlead 1\nrequest 1 17 topic=made readQueueNums=0 writeQueueNums=1 perm=6 expect={}\nsettle\n"
    assert found(script.format(29)) == []
    assert found(script.format(0))[0][0] == "answers"


def test_a_pull_that_is_never_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pulls, "_answer", lambda pulls, asked: True)
    script = "nodes 3\nlead 1\nsend 1\nrequest 1 11 consumerGroup=g topic=orders queueId=0 queueOffset=0 maxMsgNums=1 "
    fields = "sysFlag=4 subscription=* subVersion=0\nsettle\n"
    assert found(script + fields)[0][0] == "answers"


HARM = "nodes 3 hostile=1 unsent_bytes=32768 socket_bytes=2048\nlead 1\nsend 40\nattack {}\nsettle\n"


@pytest.mark.parametrize(
    "episode",
    ["odd", "halves", "stranger", *(pytest.param(name, marks=pytest.mark.ci) for name in ("pulls", "twice", "crowd"))],
)
def test_clients_that_mean_harm_harm_nobody(episode: str) -> None:
    assert found(HARM.format(episode)) == []


def test_a_connection_that_is_never_read_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotingConnection, "room_given_back", lambda connection: None)
    assert found(HARM.format("odd"))[0][0] == "answers"


def test_strangers_that_are_believed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.peer.handshake.fits", lambda proof, expected: True)
    assert found(HARM.format("stranger"))[0][0] in ("invariant", "calm", "node")


def test_bytes_that_are_never_given_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.replication.acks.early_answers.Twins.take", lambda twins, sends: [])
    assert found(HARM.format("twice"))[0][0] in ("answers", "memory")


def test_odd_requests_are_of_every_code_and_those_of_a_seed_are_the_same() -> None:
    first = [draw_odd(stream(7, "odd"), code) for code in CODES]
    assert first == [draw_odd(stream(7, "odd"), code) for code in CODES]
    assert {request.code for request in first} == {int(code) for code in CODES}


def test_no_request_is_left_out_that_changes_nothing_and_asks_no_client() -> None:
    assert set(CODES) - {4711, -5} == VERBS.keys() - LEFT_OUT.keys()
    assert {code for code in LEFT_OUT if not (VERBS[code].is_write or VERBS[code].asks_client)} == set()
    assert {26, 41, 100, 102, 222, 314, 315, 3005, 700_005} <= set(CODES)


def test_a_pull_that_may_wait_long_is_given_the_time() -> None:
    rng = stream(7, "odd")
    drawn = [draw_odd(rng, RequestCode.PULL_MESSAGE) for _ in range(4000)]
    asked = {request.ext.get("suspendTimeoutMillis"): request.parked_s for request in drawn}
    assert asked["9223372036854775807"] == 60.0
    assert asked["250"] == 0.25
    assert {asked["-9223372036854775809"], asked["*"], asked["1e5"]} == {0.0}


def test_half_of_the_seeds_have_none_of_these_clients() -> None:
    drawn = [draw(seed) for seed in range(200)]
    plain = [options for options in drawn if not _extra(options)]
    assert 70 < len(plain) < 130


def _extra(options: Options) -> bool:
    return bool(options.hostile or options.remakes or any(options.later[:2]) or (options.tides and not options.tales))
