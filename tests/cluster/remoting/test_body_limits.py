"""A body that is longer than its row allows reaches no handler, however short its frame is; all other bodies do."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.config.loading import load
from cluster.config.service_sections import LimitsSection
from cluster.remoting import handler_table
from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.server import LONG_FRAME_BYTES
from cluster.remoting.handler_table import HandlerTable
from cluster.remoting.request import Handler, Request
from cluster.requests.table import ROWS, SENDS, VERBS, too_long
from cluster.requests.verb import Verb
from raftmq_wire.codec import FLAG_RESPONSE, encode_frame
from tests.cluster.remoting.conftest import FakeConnection, FakeNode, FakeRequest
from tests.cluster.remoting.test_reads_in_turns import Counting, Loop, connect, requests
from tests.support.rows import each_row

NOBODY = 999
JUDGED_BY_HANDLERS = {10, 310, 320, 324, 325}
"""Codes whose body is a message."""
LIMITED = [verb for verb in ROWS if verb.body_bytes_max is not None]
AROUND = (0, 1, 100, LONG_FRAME_BYTES - 100, LONG_FRAME_BYTES - 1, LONG_FRAME_BYTES, LONG_FRAME_BYTES + 1)
"""Limits with which a body is in a short frame, in a long one, or just between them."""


class Served(Counting):
    """Hands what a connection takes to handlers that only note what they get."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.reached: list[tuple[int, int]] = []
        """Code and bytes of the body."""
        self.remarks: list[str | None] = []
        handlers: dict[int, Handler] = dict.fromkeys([*(VERBS.keys() - SENDS), NOBODY], self._reach)
        services: Any = FakeNode(load(None, None, {"node.id": 2, "node.data_dir": "unused"}))
        self._table = HandlerTable(
            handlers,
            self._reach,
            services=services,
            limits=LimitsSection(),
            soon=loop.call_soon,
            denied_since=lambda request: None,
        )

    def _reach(self, request: Request) -> None:
        self.reached.append((request.code, len(request.body)))
        request.reply(0)

    def on_request(self, frame: Frame) -> None:
        request = FakeRequest(FakeConnection(), frame.header.code, {"consumerGroup": "g"}, frame.body, False)
        self._table.handle(request)
        self.remarks += [each.remark for each in request.replies if each.code == 29]

    def on_too_long(self, frame: Frame, remark: str) -> None:
        self.remarks.append(remark)


def served(code: int, *bodies: int) -> Served:
    """Sends requests with bodies of so many bytes, and one that has none."""
    loop = Loop()
    dispatch = Served(loop)
    connection, _ = connect(dispatch, loop, 5 << 20)
    frames = [encode_frame(code, at, 0, body=bytes(size)) for at, size in enumerate(bodies)]
    loop.turn(lambda: connection.data_received(b"".join([*frames, requests(1)])))
    while loop.turn():
        pass
    return dispatch


def is_held(code: int, most: int) -> bool:
    """Returns True if of two bodies, one as long as is allowed and one longer, the first alone reaches the handler."""
    dispatch = served(code, most, most + 1)
    assert (NOBODY, 0) in dispatch.reached, "what comes behind it is handled"
    reached = sorted(size for number, size in dispatch.reached if number == code)
    return (reached, dispatch.remarks) == ([most], [too_long(code, most + 1)])


@each_row("verb", LIMITED, ids=lambda verb: verb.name)
def test_each_row_is_held(verb: Verb) -> None:
    """Without users and rights too, and whether its handler reads the body or not."""
    assert verb.body_bytes_max is not None
    assert is_held(verb.code, verb.body_bytes_max)


@each_row("verb", LIMITED, ids=lambda verb: verb.name)
def test_each_row_would_be_held_with_a_lower_limit(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    for most in AROUND:
        monkeypatch.setitem(VERBS, verb.code, verb._replace(body_bytes_max=most))
        assert is_held(verb.code, most), most


def test_a_limit_that_nobody_keeps_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, 30, VERBS[30]._replace(body_bytes_max=0))
    assert is_held(30, 0)
    monkeypatch.setattr(handler_table, "within_limits", dict)
    assert not is_held(30, 0)


def test_rows_without_a_limit_are_those_of_messages() -> None:
    assert {verb.code for verb in ROWS if verb.body_bytes_max is None} == JUDGED_BY_HANDLERS
    assert JUDGED_BY_HANDLERS >= SENDS, "they pass by the table"


def test_a_request_whose_limit_is_not_low_passes_through_nothing() -> None:
    """Pulls are as fast as without limits."""

    def handle(request: Request) -> None:
        raise AssertionError

    handlers: dict[int, Handler] = dict.fromkeys(VERBS.keys() - SENDS, handle)
    wrapped = {code for code, each in handler_table.within_limits(handlers).items() if each is not handle}
    assert wrapped == {verb.code for verb in LIMITED if (verb.body_bytes_max or 0) < LONG_FRAME_BYTES}
    assert wrapped >= {700_001, 700_004, 700_006}
    assert wrapped.isdisjoint({11, 361, 14, 15, 34}), "what comes often"


def test_an_answer_may_have_any_body_and_a_message_too() -> None:
    body = (4 << 20) + 1
    loop = Loop()
    dispatch = Counting(loop)
    connection, _ = connect(dispatch, loop, 5 << 20)
    for frame in (encode_frame(200, 1, FLAG_RESPONSE, body=bytes(body)), encode_frame(310, 2, 0, body=bytes(body))):
        loop.turn(lambda frame=frame: connection.data_received(frame))  # type: ignore[misc]
    while loop.turn():
        pass
    assert (dispatch.of(connection), dispatch.refused) == ([2], [])
