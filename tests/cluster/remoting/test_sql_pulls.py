"""Pulls with an SQL92 filter: what they return, how far one goes, damage, long polls, subscriptions from heartbeats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.filters import sql
from cluster.broker.groups.offset_resets import OffsetResets
from cluster.broker.pulls.filter_search import SearchBounds
from cluster.broker.pulls.pull_service import REPAIR_RETRY_MS, REPAIR_TRIES, Pulls
from cluster.broker.rights import Rights
from cluster.remoting.handlers.pull import PullRequests
from raftlog.types import NodeId
from tests.support.rows import each_row


@pytest.fixture
def pull(node: Any) -> Any:
    """Pulls from queue 0 of topic T with a filter of its own (sysFlag 4) unless told otherwise."""
    return pulling(node)


def pulling(node: Any) -> Any:
    node.create_topic("T")

    def ask(offset: int, text: str = "price > 10", **fields: Any) -> Any:
        ext = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15000,
            "subVersion": 0,
            "subscription": text,
            "expressionType": "SQL92",
        }
        return node.ask(11, **(ext | fields))

    return ask


def hold(pull: Any, offset: int, **fields: Any) -> Any:
    request = pull(offset, sysFlag=4 | 2, **fields)
    assert not request.replies
    return request


def numbers(request: Any) -> tuple[int, int]:
    """code, nextBeginOffset."""
    return request.answer.code, int(request.answer.ext["nextBeginOffset"])


def priced(node: Any, price: int | str, *bodies: bytes, long: str = "", **more: Any) -> bytes:
    user = {"price": str(price)} | ({"long": long} if long else {})
    return b"".join(node.store("T", *(bodies or (b"m",)), user=user, **more))


def test_properties_tags_and_keys_select(node: Any, pull: Any) -> None:
    cheap, dear = priced(node, 5, b"a", tag="x", keys="k1 k2"), priced(node, 20, b"b", b"c", tag="y")
    assert (numbers(pull(0)), pull(0).answer.body) == ((0, 3), dear)
    assert pull(0, "TAGS = 'x' AND KEYS CONTAINS 'k2'").answer.body == cheap
    assert pull(0, "price IS NOT NULL").answer.body == cheap + dear
    assert numbers(pull(0, "color = 'red'")) == (20, 3)
    assert numbers(pull(3)) == (19, 3), "nothing there yet, as without a filter"


def test_what_is_no_filter_is_refused_with_its_place(pull: Any) -> None:
    for text in ("price >", "", None):
        refused = pull(0, text).answer
        assert refused.code == 23
        assert refused.remark.startswith("not an SQL92 filter: at character ")


def test_one_pull_looks_at_a_bounded_number_of_messages(node: Any, pull: Any) -> None:
    priced(node, 5, *[b"m"] * 2500)
    requests = [pull(at) for at in (0, 1024, 2048)]
    node.advance(0)
    assert [numbers(request) for request in requests] == [(20, 1024), (20, 2048), (20, 2500)]


@each_row(
    ("bytes_max", "window_bytes", "at", "stops"),
    [
        (350_000, 256 << 10, 0, 4),  # in reads of two
        (1, 10, 4, 5),  # at least one, however large
    ],
)
def test_one_pull_reads_a_bounded_number_of_bytes(
    node_with: Any, bytes_max: int, window_bytes: int, at: int, stops: int
) -> None:
    node = node_with(bounds={"search": SearchBounds(bytes_max=bytes_max, window_bytes=window_bytes)})
    pull = pulling(node)
    priced(node, 5, *[b"m" * 100_000] * 10)
    assert numbers(pull(at)) == (20, stops)


def test_one_pull_does_a_bounded_amount_of_work(node_with: Any, node: Any, pull: Any) -> None:
    priced(node, 5, *[b"m"] * 20, long="x" * 20_000)
    text = "price > 10" + " OR long CONTAINS 'abcdefg'" * 50
    request = pull(0, text)
    node.advance(0)
    assert numbers(request) == (20, 3), "each costs some 8,000 units"
    node = node_with(bounds={"search": SearchBounds(units_max=1)})
    pull = pulling(node)
    priced(node, 5, *[b"m"] * 20, long="x" * 20_000)
    for at in range(3, 6):
        request = pull(at, text)
        node.advance(0)
        assert numbers(request) == (20, at + 1), "at least one message, whatever that costs"


def test_limits_of_an_answer(node: Any, pull: Any) -> None:
    size = len(priced(node, 20, *[b"m" * 1000] * 10)) // 10
    priced(node, 5)
    assert numbers(pull(0, maxMsgNums=3)) == (0, 3)
    assert numbers(pull(0, maxMsgBytes=3 * size - 1)) == (0, 2)
    assert numbers(pull(0, maxMsgBytes=1)) == (0, 1), "at least one message, whatever its size"
    assert numbers(pull(9)) == (0, 11), "past what did not match behind it"


def test_messages_are_read_once(node: Any, pull: Any) -> None:
    priced(node, 20, b"a", b"b", b"c")
    node.reads.clear()
    assert numbers(pull(0)) == (0, 3)
    assert len(node.reads) == 1


def test_damage_never_makes_a_message_unwanted(node: Any, pull: Any) -> None:
    stored = [priced(node, 20), priced(node, 5), priced(node, 20), priced(node, 20)]
    items = node.state.fetch(node.state.topics["T"].id, 0, 0, 4)
    bad = items[2]
    node.rotten = {bad.position + bad.size - 2}
    assert (numbers(pull(0)), pull(0).answer.body) == ((0, 2), stored[0]), "what is intact before it is served"
    assert node.reported[0] == (bad.position, bad.size)
    assert numbers(pull(1)) == (20, 2), "up to it"
    waiting = pull(2)
    node.advance(REPAIR_TRIES * REPAIR_RETRY_MS)
    assert numbers(waiting) == (2, 2)
    waiting = pull(2)
    node.rotten = set()
    node.advance(REPAIR_RETRY_MS)
    assert waiting.answer.body == stored[2] + stored[3]


def test_a_held_pull_wakes_only_for_what_its_filter_wants(node: Any, pull: Any) -> None:
    held, other = hold(pull, 0), hold(pull, 0, text="price < 3")
    priced(node, 5)
    assert not held.replies
    node.advance(14_000)
    wanted = priced(node, 20)
    assert (numbers(held), held.answer.body) == ((0, 2), wanted)
    node.advance(1_100)
    assert numbers(other) == (19, 2), "what it has seen need not be read again"


def test_a_held_pull_that_is_far_behind_goes_on_at_once(node: Any, pull: Any) -> None:
    held = hold(pull, 0)
    priced(node, 5, *[b"m"] * 1025)
    node.advance(0)
    assert numbers(held) == (20, 1024)


def test_subscriptions_of_heartbeats_filter(node: Any, pull: Any) -> None:
    priced(node, 5)
    dear = priced(node, 20)

    def beat(text: str, version: int) -> int:
        row = {"topic": "T", "subString": text, "expressionType": "SQL92", "subVersion": version}
        data = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [row]}]}
        return int(node.ask(34, json.dumps(data).encode()).answer.code)

    assert pull(0, sysFlag=0).answer.code == 24
    assert beat("price > 10", 7) == 0
    assert node.state.groups["g"].subscriptions["T"] == ("SQL92", "price > 10", 7)
    assert pull(0, sysFlag=0, subVersion=7).answer.body == dear
    assert pull(0, sysFlag=0, subVersion=8).answer.code == 25, "unlike tags: the client does not filter once more"
    node.leader = NodeId(1)
    assert pull(0, sysFlag=0, subVersion=7).answer.body == dear, "a follower filters the same"
    assert beat("price >", 8) == 0
    assert pull(0, sysFlag=0, subVersion=8).answer.code == 23


def test_tags_whose_hashes_are_equal_are_one_tag_to_the_broker(node: Any, pull: Any) -> None:
    """Clients compare the text once more; the filter TAGS = 'Aa' needs no such help."""
    aa, bb, other = (node.store("T", b"m", tag=tag)[0] for tag in ("Aa", "BB", "x"))
    assert pull(0, "Aa", expressionType="TAG").answer.body == aa + bb
    assert pull(0, "Aa || x", expressionType="TAG").answer.body == aa + bb + other
    assert pull(0, "*", expressionType="TAG").answer.body == aa + bb + other
    assert pull(0, "TAGS = 'Aa'").answer.body == aa


def test_a_pull_goes_elsewhere_before_it_reads_what_this_node_lacks(node: Any, pull: Any) -> None:
    priced(node, 20)
    asked: list[int] = []

    def elsewhere(request: Any, position: int) -> bool:
        asked.append(position)
        return True

    pulls = Pulls(node, node.members, OffsetResets(node, Rights(node.state.access)))
    codes = PullRequests(pulls, elsewhere, lambda request: False).codes()
    node.table |= codes
    node.reads.clear()
    assert pull(0).replies == []
    assert (len(asked), node.reads) == (1, [])


def test_what_waits_is_counted_with_its_filter(node: Any, pull: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    filter_bytes = 2 * node.config.limits.node_inflight_bytes_max // 3
    monkeypatch.setattr(sql, "BYTES_PER_CHARACTER", filter_bytes // len("a = 1"))
    first, second = hold(pull, 0, text="a = 1"), hold(pull, 0, text="a = 1")
    refused = pull(0, "a = 2", sysFlag=4 | 2).answer
    assert refused.code == 2
    assert "limits.node_inflight_bytes_max" in refused.remark
    node.store("T", b"m", user={"a": "1"})
    assert (first.answer.code, second.answer.code) == (0, 0)
    hold(pull, 1, text="a = 2")
    node.store("T", b"m")
    assert pull(2, "a = 1", sysFlag=4 | 2).answer.code == 2, "the other one waits on"
    node.advance(15_100)
    hold(pull, 2, text="a = 1")
