"""The table of verbs: a row says everything, each has a handler, and no two contradict each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.remoting.connection.frame import Frame
from cluster.remoting.connection.remoting_request import RemotingRequest
from cluster.requests import answer_sizes, table
from cluster.requests.table import ROWS, SENDS, VERBS, by_row, codes_where, name_of, too_long
from cluster.requests.verb import Cost, Repeats, Serves, Stage
from cluster.runtime.metered_json import PARSE_KIB_UNITS
from cluster.runtime.request_limits import (
    ANSWER_QUEUES_MAX,
    GROUP_BODY_BYTES_MAX,
    OTHER_BODY_BYTES_MAX,
    STAGED_BYTES_MAX,
)
from jepsen_like.sim.machines.turn_bounds import turn_bound
from raftlog.work import FRAME_UNITS, KIB_UNITS
from raftmq_wire.codec import JSON, Header
from tests.support.rows import each_row

HANDLED: dict[int, Any] = dict.fromkeys(VERBS.keys() - SENDS, print)


def test_a_code_without_a_row_or_a_row_without_a_handler_ends_the_start() -> None:
    assert by_row(dict(HANDLED)) == HANDLED
    with pytest.raises(ValueError, match=r"\[4711\]"):
        by_row(HANDLED | {4711: print})
    with pytest.raises(ValueError, match=r"\[11\]"):
        by_row({code: handler for code, handler in HANDLED.items() if code != 11})
    with pytest.raises(ValueError, match=r"\[310\]"):
        by_row(HANDLED | {310: print})


def test_two_rows_of_one_code_or_name_are_refused() -> None:
    one = VERBS[11]
    for other in (one, one._replace(code=4711), one._replace(name="OTHER"), one._replace(code=40, name="OTHER")):
        with pytest.raises(ValueError, match="two rows"):
            table._only_once([one, other])


def test_what_cannot_be_repeated_keeps_the_order_of_its_connection() -> None:
    assert table.ONE_TRY < table.IN_LINE
    assert SENDS | {14} == table.IN_LINE - table.ONE_TRY, "a query sees the commits before it"


def test_what_is_forwarded_in_a_way_of_its_own_is_only_the_leaders() -> None:
    of_leader = codes_where(lambda verb: verb.serves.is_leader)
    assert of_leader >= table.WRITES | table.IN_LINE | table.SILENT
    assert codes_where(lambda verb: verb.repeats is Repeats.RECOGNISED) >= table.KEPT
    assert codes_where(lambda verb: verb.serves is Serves.CONFIRMED).isdisjoint(table.WRITES)


def test_an_answer_that_costs_much_has_a_size_or_is_a_write() -> None:
    for verb in ROWS:
        if verb.cost is Cost.READS_MUCH and verb.name != "AUTH_GET_ACL":  # one user's rules are bounded
            assert verb.answer_bytes is not None, verb.name
        assert (verb.cost is Cost.WRITES_MUCH) <= verb.is_write


def test_the_most_queues_of_an_answer_are_one_figure() -> None:
    """Its page says it, and memory is reserved for as many."""
    state: Any = SimpleNamespace(queue_count=1 << 40)
    limits: Any = None
    assert answer_sizes.queue_figures(state, limits) == answer_sizes.QUEUE_BYTES * ANSWER_QUEUES_MAX
    pages = {verb.name: verb.page for verb in ROWS if verb.answer_bytes is answer_sizes.queue_figures}
    assert {"GET_TOPIC_STATS_INFO", "GET_CONSUME_STATS"} <= pages.keys()
    for name, page in pages.items():
        assert f"at most {ANSWER_QUEUES_MAX:,} queues" in page, name


def test_fields_are_named_once_and_stand_on_the_page() -> None:
    for verb in ROWS:
        names = [each.removesuffix("!") for each in verb.fields.split()]
        assert len(names) == len(set(names)), verb.name
        assert ("{fields}" in verb.page) <= bool(names), verb.name


@pytest.mark.parametrize(
    ("code", "most"),
    [(34, OTHER_BODY_BYTES_MAX), (200, GROUP_BODY_BYTES_MAX), (11, OTHER_BODY_BYTES_MAX), (4711, OTHER_BODY_BYTES_MAX)],
)
def test_bodies_are_as_long_as_their_row_says(code: int, most: int) -> None:
    assert too_long(code, most) is None
    assert too_long(code, most + 1) == f"the body of request {code} has {most + 1} bytes, {most} are allowed"


def test_a_body_of_json_is_parsed_twice_in_one_turn() -> None:
    """For the rights that it names, and by its handler (seed 860001008). Other bodies hold messages, or positions of 8
    bytes."""
    longer = {verb.name: verb.body_bytes_max for verb in ROWS if (verb.body_bytes_max or 0) > OTHER_BODY_BYTES_MAX}
    assert longer == {"STAGE_MESSAGES": STAGED_BYTES_MAX}
    parsed = 2 * (OTHER_BODY_BYTES_MAX >> 10) * PARSE_KIB_UNITS
    assert parsed + FRAME_UNITS + (OTHER_BODY_BYTES_MAX >> 10) * KIB_UNITS < turn_bound("RemotingConnection._data")


@each_row("code", [10, 310, 320, 324, 325])
def test_a_body_with_messages_is_judged_by_its_handler(code: int) -> None:
    assert too_long(code, 1 << 40) is None


@each_row(
    ("code", "name", "stage"),
    [
        (11, "PULL_MESSAGE", Stage.READ),
        (14, "QUERY_CONSUMER_OFFSET", Stage.CONFIRM),
        (400, "QUERY_ASSIGNMENT", Stage.CONFIRM),
        (309, "CONSUME_MESSAGE_DIRECTLY", Stage.CLIENT),
        (325, "SEND_REPLY_MESSAGE_V2", Stage.CLIENT),
        (4711, "4711", Stage.READ),
    ],
)
def test_a_request_tells_the_slow_log_its_verbs_name_and_stage(code: int, name: str, stage: Stage) -> None:
    path: Any = None
    request = RemotingRequest.of(Frame(path, JSON, Header(code), b"", b"", 0))
    assert (request.name, request.stage) == (name, stage)
    assert name_of(code) == name
