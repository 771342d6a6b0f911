"""Codes that nobody handles: counted, logged once per client, slowed down when programs repeat them; memory stays
bounded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import click
import pytest

from cluster.remoting.handlers.unsupported_codes import (
    CONNECTION_WAITING_MAX,
    DELAY_MAX_MS,
    FREE,
    LOGGED_MAX,
    QUIET_MS,
    WAITING_MAX,
    RefusedCodes,
)
from cluster.requests.request_metrics import RequestMetrics
from cluster.requests.table import VERBS
from raftmq.cli import cli
from raftmq_wire.codes import INSTEAD, REFUSED_NAMES, REPEATED, RequestCode
from tests.cluster.remoting.conftest import FakeConnection, FakeNode, FakeRequest
from tests.support.samples import sample

POP = 200050


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
def refused(node: FakeNode, metrics: RequestMetrics) -> RefusedCodes:
    return RefusedCodes(node, metrics)


def ask(refused: RefusedCodes, connection: FakeConnection, code: int = POP, language: str = "CPP") -> FakeRequest:
    request = FakeRequest(connection, code, {"a": "b"}, b"x" * 1000, oneway=False)
    request.language = language
    refused.refuse(request)
    return request


def test_a_client_that_asks_again_at_once_gets_its_answers_ever_later(node: FakeNode, refused: RefusedCodes) -> None:
    connection = FakeConnection()
    assert all(ask(refused, connection).answer.code == 3 for _ in range(FREE))
    begun, asked = node.now_ms, 0
    while node.now_ms < begun + 60_000:
        request = ask(refused, connection)
        while not request.replies:
            node.advance(1)
        asked += 1
    assert asked < 80, "one that waits for each answer asks about once a second"
    assert node.now_ms - begun < 60_000 + DELAY_MAX_MS


def test_a_tool_waits_for_no_refusal(refused: RefusedCodes) -> None:
    """`mqadmin statsAll` asks once for each topic and group, 200 times for some."""
    connection = FakeConnection()
    for code in REFUSED_NAMES.keys() - REPEATED:
        assert all(ask(refused, connection, code, "JAVA").answer.code == 3 for _ in range(200))
    assert refused.waiting == 0


def test_programs_repeat_only_codes_that_have_a_name() -> None:
    assert REFUSED_NAMES.keys() >= REPEATED


def test_other_codes_and_other_connections_are_answered_at_once(refused: RefusedCodes) -> None:
    one, other = FakeConnection(), FakeConnection()
    for _ in range(FREE + 5):
        ask(refused, one)
    assert ask(refused, one, 46).answer.code == 3
    assert ask(refused, other).answer.code == 3


def test_a_code_left_alone_begins_anew(node: FakeNode, refused: RefusedCodes) -> None:
    connection = FakeConnection()
    for _ in range(FREE + 5):
        ask(refused, connection)
    node.advance(QUIET_MS + 1)
    assert ask(refused, connection).answer.code == 3


def test_what_waits_is_bounded_and_leaves_with_its_connection(node: FakeNode, refused: RefusedCodes) -> None:
    connections = [FakeConnection() for _ in range(WAITING_MAX // CONNECTION_WAITING_MAX + 2)]
    for connection in connections:
        requests = [ask(refused, connection) for _ in range(FREE + CONNECTION_WAITING_MAX + 10)]
        assert sum(not request.replies for request in requests) <= CONNECTION_WAITING_MAX
        assert all(not request.body and not request.ext for request in requests), "an answer waits, not a request"
    assert refused.waiting == WAITING_MAX
    for connection in connections:
        connection.close()
    assert (refused.waiting, refused.remembered) == (0, 1), "one log line: all came from one address"
    node.advance(DELAY_MAX_MS)


def test_every_answer_that_waits_comes(node: FakeNode, refused: RefusedCodes) -> None:
    connection = FakeConnection()
    requests = [ask(refused, connection) for _ in range(200)]
    node.advance(DELAY_MAX_MS)
    assert all(request.answer.code == 3 for request in requests)
    assert refused.waiting == 0


def test_the_counter_has_bounded_labels(refused: RefusedCodes, metrics: RequestMetrics) -> None:
    connection = FakeConnection()
    for code in range(100_000, 100_500):
        ask(refused, connection, code, language=f"LANGUAGE-{code}")
    for _ in range(3):
        ask(refused, connection)
    assert sample(metrics, "raftmq_codes_refused_total", code="200050", language="CPP") == 3
    assert sample(metrics, "raftmq_codes_refused_total", code="other", language="OTHER") == 500


def test_one_log_line_per_client_and_code(
    refused: RefusedCodes, caplog: pytest.LogCaptureFixture, connect: Callable[..., Any]
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(100):
        ask(refused, connect())
    ask(refused, connect(), 46)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "10.9.9.9 (CPP" in lines[0]
    assert "200050 POP_MESSAGE" in lines[0]
    for number in range(2 * LOGGED_MAX):
        other = FakeConnection()
        other.peer_address = (f"10.0.{number // 256}.{number % 256}", 1)
        ask(refused, other)
        other.close()
    assert refused.remembered <= LOGGED_MAX + 101 + 1, "open connections, and the lines that are remembered"


def test_the_remark_names_what_is_missing(refused: RefusedCodes, connect: Callable[..., Any]) -> None:
    assert "RESUME_CHECK_HALF_MESSAGE" in (ask(refused, connect(), 323).answer.remark or "")


def test_the_remark_names_what_there_is_instead(refused: RefusedCodes, connect: Callable[..., Any]) -> None:
    remark = ask(refused, connect(), 223).answer.remark or ""
    assert "no INVOKE_BROKER_TO_GET_CONSUMER_STATUS yet; 307 asks one consumer" in remark


def test_every_code_of_a_tool_comes_with_advice() -> None:
    assert INSTEAD.keys() == REFUSED_NAMES.keys() - REPEATED


def test_advice_names_codes_that_are_served_and_commands_that_exist() -> None:
    for text in INSTEAD.values():
        for code in re.findall(r"\b\d{2,}\b", text):
            assert int(code) in VERBS, text
        for command in re.findall(r"`raftmq ([^`]*)`", text):
            assert_exists(command)
    assert sum("`raftmq " in text for text in INSTEAD.values()) > 10


def assert_exists(command: str) -> None:
    """Follows the words of a command through the groups, and looks up its options."""
    at: click.Command = cli
    for word in command.split():
        if isinstance(at, click.Group):
            found = at.get_command(click.Context(at), word)
            assert found is not None, command
            at = found
        elif word.startswith("--"):
            assert any(word in one.opts for one in at.params), command


def test_no_code_has_both_a_handler_and_a_refusal(node: FakeNode) -> None:
    assert not REFUSED_NAMES.keys() & {*node.table, *map(int, RequestCode)}


@pytest.mark.parametrize(
    ("code", "name"),
    [(18, "UPDATE_AND_CREATE_TOPIC_LIST"), (1005, "CONTROLLER_GET_METADATA_INFO"), (1002, "CONTROLLER_ELECT_MASTER")],
)
def test_codes_are_called_what_rocketmq_calls_them(code: int, name: str) -> None:
    assert REFUSED_NAMES[code] == name
