"""Filters that are made in turns: new texts are parsed a few words at a time, fairly between clients, once for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.filters import known_filters
from cluster.broker.filters.known_filters import KnownFilters, Unknown
from cluster.broker.refusal import Refused
from raftlog.work import METER
from statemachine.removal_slices import DeleteTopic

SHARE = 1_000
"""Units of work of a turn. Steps are smaller than half of it."""
LARGE = " OR ".join(f"p{number} = 'x'" for number in range(511))
LARGE_UNITS = 15 * 4 * 511


@pytest.fixture
def node(node_with: Any) -> Any:
    node = node_with(SHARE)
    node.create_topic("T")
    node.store("T", b"m", user={"a": "1"})
    return node


def pull(node: Any, connection: Any, text: str, kind: str = "SQL92", **fields: Any) -> Any:
    ext = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15000,
        "subVersion": 0,
        "subscription": text,
        "expressionType": kind,
    }
    return node.ask(11, connection=connection, **(ext | fields))


def test_a_large_filter_takes_many_turns_and_none_is_long(node: Any, connect: Callable[[], Any]) -> None:
    units = METER.units
    request = pull(node, connect(), LARGE)
    assert not request.replies
    node.advance(1000)
    assert request.answer.code == 20
    assert METER.units - units > LARGE_UNITS > 10 * SHARE
    assert node.longest < 1.5 * SHARE


def test_a_filter_is_parsed_once_for_all_who_ask(node: Any, connect: Callable[[], Any]) -> None:
    units = METER.units
    requests = [pull(node, connect(), LARGE) for _ in range(10)]
    node.advance(1000)
    assert [request.answer.code for request in requests] == [20] * 10
    again = pull(node, connect(), LARGE)
    assert again.replies, "known from now on"
    assert METER.units - units < 2 * LARGE_UNITS


def test_a_client_with_many_new_filters_does_not_hold_up_another(node: Any, connect: Callable[[], Any]) -> None:
    hostile, honest = connect(), connect()
    attack = [pull(node, hostile, f"{LARGE} OR q{number} = 'x'") for number in range(10)]
    request = pull(node, honest, "a = '1'")
    node.next_turn()
    assert request.answer.code == 0, "in the next turn, beside the first of the others"
    assert not any(each.replies for each in attack)
    assert (hostile.works, honest.works) == (10, 0)
    node.advance(10_000)
    assert all(each.answer.code == 20 for each in attack)
    assert hostile.works == 0


def test_who_hangs_up_gives_the_parse_up(node: Any, connect: Callable[[], Any]) -> None:
    connection = connect()
    request = pull(node, connection, LARGE)
    other = pull(node, connect(), LARGE)
    connection.close()
    node.advance(1000)
    assert not request.replies
    assert other.answer.code == 20, "what was done by then is not lost"
    assert connection.works == 0


def test_a_deleted_topic_ends_it(node: Any, connect: Callable[[], Any]) -> None:
    request = pull(node, connect(), LARGE)
    node.command(DeleteTopic("T"))
    node.advance(5000)
    assert request.answer.code == 17


def test_what_a_pull_carries_is_noted_as_it_arrives_and_once_however_long_it_waits(
    node: Any, connect: Callable[[], Any]
) -> None:
    """A commit over its connection while the pull waits, for its filter or for a turn with room, is newer."""
    node.ask(34, json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}).encode())
    fields: dict[str, Any] = {"sysFlag": 4 | 1, "consumerGroup": "g"}
    connection = connect()
    pull(node, connection, "a = 'new'", commitOffset=1, **fields)
    pull(node, connection, LARGE, commitOffset=2, **fields)
    for offset in range(3, 1003):
        pull(node, connection, "a = 'new'", commitOffset=offset, **fields)
    assert connection.works > 500, "the turn is used up"
    assert [offset for *_, offset in node.later] == list(range(1, 1003))
    node.advance(1000)
    assert connection.works == 0
    assert len(node.later) == 1002


def test_a_check_of_a_client_waits_for_the_parser(node: Any, connect: Callable[[], Any]) -> None:
    def check(text: str) -> Any:
        data = {"subscriptionData": {"topic": "T", "subString": text, "expressionType": "SQL92"}}
        return node.ask(46, json.dumps(data).encode())

    good, bad = check(LARGE), check(LARGE + " OR")
    assert (good.replies, bad.replies) == ([], [])
    node.advance(2000)
    assert good.answer.code == 0
    assert bad.answer.code == 23
    assert bad.answer.remark == f"not an SQL92 filter: at character {len(LARGE) + 4}: unexpected end"
    assert check(LARGE + " OR").answer.code == 23, "what is wrong is remembered, too"


def test_many_tags_are_hashed_in_turns(node: Any, connect: Callable[[], Any]) -> None:
    text = "||".join(f"t{number}" for number in range(4000))
    request = pull(node, connect(), text, kind="TAG")
    assert not request.replies
    node.advance(1000)
    assert request.answer.code == 20
    assert pull(node, connect(), text, kind="TAG").replies
    assert node.longest < 1.5 * SHARE


def test_a_filter_above_its_limit_is_refused_by_its_name(node_with: Any, connect: Callable[[], Any]) -> None:
    node = node_with(**{"limits.filter_units_max": 1000, "limits.properties_bytes_max": 10_000})
    node.create_topic("T")
    text = " OR ".join(["a CONTAINS 'something long enough'"] * 10)
    data = {"subscriptionData": {"topic": "T", "subString": text, "expressionType": "SQL92"}}
    for refused in (pull(node, connect(), text).answer, node.ask(46, json.dumps(data).encode()).answer):
        assert refused.code == 23
        assert "limits.filter_units_max is 1000" in refused.remark
        assert "limits.properties_bytes_max = 10000" in refused.remark
    assert pull(node, connect(), "a CONTAINS 'something long enough'").answer.code == 19


def test_every_filter_of_2048_words_is_below_the_default(node: Any, connect: Callable[[], Any]) -> None:
    text = "a CONTAINS '12345678901234567890'" + " OR a CONTAINS '12345678901234567890'" * 430
    request = pull(node, connect(), text)
    node.advance(5000)
    assert request.answer.code == 20


def learned(filters: KnownFilters, kind: str, text: str) -> Any:
    for _ in filters.learn(kind, text):
        pass
    return filters.get(kind, text)


def test_few_are_kept_and_those_in_use(node: Any) -> None:
    filters = KnownFilters(node)
    first = learned(filters, "SQL92", f"a = '{0:0>10000}'")
    assert filters.get("SQL92", f"a = '{0:0>10000}'") is first
    for number in range(1, 100):
        learned(filters, "SQL92", f"a = '{number:0>10000}'")
        with pytest.raises(Refused):
            learned(filters, "SQL92", f"'{number:0>10000}")
        learned(filters, "TAG", f"{number:0>10000}")
    assert filters._characters <= known_filters.KEPT_MAX
    assert len(filters._kept) == known_filters.KEPT_MAX // 10_000
    assert filters.get("SQL92", f"a = '{0:0>10000}'") is first, "somebody holds it"
    del first
    assert isinstance(filters.get("SQL92", f"a = '{0:0>10000}'"), Unknown)


def test_what_is_too_long_is_not_kept(node: Any) -> None:
    filters = KnownFilters(node)
    for kind, length in (("SQL92", 20_000), ("TAG", 40_000)):
        with pytest.raises(Refused, match=r"at most|too long"):
            filters.get(kind, "a" * length)
    assert not filters._kept
