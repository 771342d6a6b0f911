"""Clients that mix kinds of commits, that change topics, and that mean harm: the product passes."""

from __future__ import annotations

import pytest

from cluster.requests.table import VERBS
from jepsen_like.sim.hostile.senseless_requests import CODES, LEFT_OUT, draw_odd
from jepsen_like.sim.options import Options, draw, stream
from jepsen_like.sim.scripted import play
from raftmq_wire.codes import RequestCode

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


def test_topics_come_and_go_while_messages_flow() -> None:
    assert found("nodes 3 remakes=1\nlead 1\nremake 4\nsettle\n") == []


def test_a_request_has_the_answer_that_the_script_expects() -> None:
    script = "nodes 3\nlead 1\nrequest 1 17 topic=made readQueueNums=0 writeQueueNums=1 perm=6 expect={}\nsettle\n"
    assert found(script.format(29)) == []
    assert found(script.format(0))[0][0] == "answers"


HARM = "nodes 3 hostile=1 unsent_bytes=32768 socket_bytes=2048\nlead 1\nsend 40\nattack {}\nsettle\n"


@pytest.mark.parametrize(
    "episode",
    ["odd", "halves", "stranger", *(pytest.param(name, marks=pytest.mark.ci) for name in ("pulls", "twice", "crowd"))],
)
def test_clients_that_mean_harm_harm_nobody(episode: str) -> None:
    assert found(HARM.format(episode)) == []


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
