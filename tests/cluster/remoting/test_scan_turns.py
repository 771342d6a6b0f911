"""Pulls with a filter are answered in turns: none is long, nobody waits for another's filter, no message is skipped.

And what may happen between two steps: the queue grows, its topic goes, the client hangs up, the answer finds no room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.filters.sql import SqlFilter
from cluster.broker.pulls.filter_search import SearchBounds, Verdicts
from cluster.broker.reads.row_scan import ScanBounds
from raftlog.work import METER
from statemachine.removal_slices import DeleteTopic

SHARE = 2_000
LONG = "a" * 29_900
NEEDLE = "a" * 30 + "b" + "a" * 30


def hostile_filter(number: int = 0, last: str = "price > 10") -> str:
    return " OR ".join([f"long CONTAINS '{NEEDLE}{number:03}{term:03}'" for term in range(135)] + [last])


@pytest.fixture
def node(node_with: Any) -> Any:
    node = node_with(SHARE)
    node.create_topic("T")
    return node


def pull(node: Any, connection: Any, offset: int, text: str, kind: str = "SQL92", hold: bool = False) -> Any:
    return node.ask(
        11,
        connection=connection,
        consumerGroup="g",
        topic="T",
        queueId=0,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=6 if hold else 4,
        commitOffset=0,
        suspendTimeoutMillis=15000,
        subVersion=0,
        subscription=text,
        expressionType=kind,
    )


def learn(node: Any, *texts: str) -> None:
    """Has the node parse the texts, so that parsing takes no part in what follows."""
    kept = [list(node.pulls.filters.learn("SQL92", text)) for text in texts]
    assert len(kept) == len(texts)
    node.longest = 0


def numbers(request: Any) -> tuple[int, int]:
    return request.answer.code, int(request.answer.ext["nextBeginOffset"])


def test_a_hundred_costly_pulls_make_no_turn_long(node: Any, connect: Callable[[], Any]) -> None:
    node.store("T", b"m", user={"long": LONG, "price": "5"})
    texts = [hostile_filter(number) for number in range(8)]
    hostile, honest = connect(), connect()
    learn(node, *texts, "price > 1")
    attack = [pull(node, hostile, 0, text) for text in texts]
    assert not any(request.replies for request in attack)
    request = pull(node, honest, 0, "price > 1")
    node.next_turn()
    node.next_turn()
    assert request.answer.code == 0, "it came in a turn that was used up: taken in the next, answered in another"
    assert not any(each.replies for each in attack)
    node.advance(1000)
    assert [numbers(each) for each in attack] == [(20, 1)] * 8
    assert node.longest < 1.5 * SHARE
    assert hostile.works == 0


def test_equal_filters_judge_a_message_once(node: Any, connect: Callable[[], Any]) -> None:
    node.store("T", b"m", user={"long": LONG, "price": "5"})
    text = hostile_filter()
    learn(node, text)
    before = METER.units
    pull(node, connect(), 0, text)
    node.advance(1000)
    once = METER.units - before
    before = METER.units
    node.store("T", b"m", user={"long": LONG, "price": "5"})
    requests = [pull(node, connect(), 1, text) for _ in range(50)]
    node.advance(1000)
    assert [numbers(request) for request in requests] == [(20, 2)] * 50
    assert METER.units - before < 2 * once, "also while it is being judged"


def test_the_last_term_counts_like_the_first(node: Any, connect: Callable[[], Any]) -> None:
    stored = [node.store("T", b"m", user={"long": LONG, "price": str(price)})[0] for price in (5, 20, 5, 30)]
    request = pull(node, connect(), 0, hostile_filter())
    while not request.replies:
        node.advance(1)
    found, at = request.answer.body, numbers(request)[1]
    while at < 4:
        request = pull(node, connect(), at, hostile_filter())
        node.advance(1000)
        found, at = found + request.answer.body, numbers(request)[1]
    assert found == stored[1] + stored[3]


@pytest.mark.parametrize("rotten", [None, 2, 7])
@pytest.mark.parametrize("kind", ["SQL92", "TAG"])
def test_wherever_it_is_cut_a_pull_gets_the_same(
    node_with: Any, connect: Callable[[], Any], kind: str, rotten: int | None
) -> None:
    text = "price > 1 AND long NOT CONTAINS 'yyyyyy'" if kind == "SQL92" else "b"

    def answers(search: SearchBounds, scan: ScanBounds) -> list[Any]:
        node = node_with(bounds={"search": search, "scan": scan})
        node.create_topic("T")
        for number in range(12):
            user = {"price": str(number % 5), "long": "x" * 5000}
            node.store("T", bytes(100 * number), tag="ab"[number % 2], user=user)
        if rotten is not None:
            item = node.state.fetch(node.state.topics["T"].id, 0, rotten, 1)[0]
            node.rotten = {item.position + item.size - 2}
        requests = [pull(node, connect(), at, text, kind) for at in range(12)]
        node.advance(5000)
        return [request.answer for request in requests]

    search, scan = SearchBounds(window=4), ScanBounds(window=2, window_units=1)
    whole = answers(search, scan)
    for steps in (1, 30, 100, 5000):
        for kept in (0, 1 << 20):
            cut = search._replace(step_units=steps, kept_bytes=kept), scan._replace(step_units=steps)
            assert answers(*cut) == whole, (steps, kept)


def test_many_tag_filters_make_no_turn_long(node: Any, connect: Callable[[], Any]) -> None:
    for _ in range(5):
        node.store("T", *[b"m"] * 1000, tag="other")
    node.longest = 0
    connection = connect()
    requests = [pull(node, connection, 0, f"t{number}", "TAG") for number in range(100)]
    assert not all(request.replies for request in requests)
    node.advance(1000)
    assert [numbers(request) for request in requests] == [(20, 4096)] * 100
    assert node.longest < 1.5 * SHARE


def test_many_plain_pulls_make_no_turn_long(node: Any, connect: Callable[[], Any]) -> None:
    stored = node.store("T", b"m")[0]
    node.longest = 0
    connection, before = connect(), METER.units
    requests = [pull(node, connection, 0, "*", "TAG") for _ in range(1000)]
    assert METER.units - before < 20 * 1000 + 2 * SHARE, "most of them wait, with nothing done for them"
    assert connection.works > 800
    node.advance(10)
    assert [request.answer.body for request in requests] == [stored] * 1000
    assert node.longest < 1.5 * SHARE
    assert connection.works == 0


def test_a_queue_that_grows_during_the_search_is_not_missed(node: Any, connect: Callable[[], Any]) -> None:
    learn(node, hostile_filter())
    held = pull(node, connect(), 0, hostile_filter(), hold=True)
    node.store("T", b"m", user={"long": LONG, "price": "5"})
    assert not node.pulls.long_polls.count, "it is being judged"
    wanted = node.store("T", b"m", user={"price": "20"})
    node.advance(4000)
    assert held.answer.body == wanted[0]


def test_what_has_been_passed_over_is_not_read_again(node: Any, connect: Callable[[], Any]) -> None:
    held = pull(node, connect(), 0, hostile_filter(), hold=True)
    node.advance(10)
    node.store("T", b"m", user={"long": LONG, "price": "5"})
    node.advance(10)
    assert not held.replies
    node.reads.clear()
    wanted = node.store("T", b"m", user={"price": "20"})
    node.advance(10)
    assert held.answer.body == wanted[0]
    assert len(node.reads) == 1


def begun(node: Any, connection: Any) -> Any:
    """A pull whose first message is wanted and whose second is being judged."""
    learn(node, hostile_filter())
    node.store("T", b"m", user={"price": "20"})
    node.store("T", b"m", user={"long": LONG, "price": "20"})
    request = pull(node, connection, 0, hostile_filter())
    assert not request.replies
    return request


def test_a_deleted_topic_ends_the_search(node: Any, connect: Callable[[], Any]) -> None:
    request = begun(node, connect())
    node.command(DeleteTopic("T"))
    node.advance(1000)
    assert request.answer.code == 17


def test_a_node_that_is_fenced_meanwhile_serves_nothing(node: Any, connect: Callable[[], Any]) -> None:
    request = begun(node, connect())
    node.is_fenced = True
    node.advance(1000)
    assert (request.answer.code, request.answer.body) == (2, b"")


def test_who_hangs_up_is_searched_for_no_more(node: Any, connect: Callable[[], Any]) -> None:
    connection = connect()
    request = begun(node, connection)
    connection.close()
    before = METER.units
    node.advance(1000)
    assert not request.replies
    assert connection.works == 0
    assert METER.units - before < SHARE, "the step that follows is the last"


def test_what_was_found_waits_for_room(node: Any, connect: Callable[[], Any]) -> None:
    connection = connect()
    request = begun(node, connection)
    connection.has_room = False
    node.advance(1000)
    assert not request.replies
    connection.has_room = True
    again = connection.waiting.pop()
    node.reads.clear()
    again()
    assert numbers(request) == (0, 2)
    assert len(node.reads) == 1, "messages are read when they are sent"


def test_what_was_trimmed_meanwhile_is_not_sent(node: Any, connect: Callable[[], Any]) -> None:
    connection = connect()
    request = begun(node, connection)
    connection.has_room = False
    node.advance(1000)
    node.command(DeleteTopic("T"))
    connection.waiting.pop()()
    assert request.answer.code == 17


def test_few_verdicts_are_remembered() -> None:
    verdicts, wanted = Verdicts(SearchBounds(verdicts_max=10)), SqlFilter("price > 10")
    for position in range(100):
        verdicts.note(wanted, position, position % 2 == 0)
    assert [verdicts.of(wanted, position) for position in range(90, 100)] == [True, False] * 5
    assert [verdicts.of(wanted, position) for position in range(90)] == [None] * 90
