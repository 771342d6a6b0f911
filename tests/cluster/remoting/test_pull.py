"""Pulls: every row of the decision table, limits, filters, damaged bytes, long polls."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.pulls.pull_service import REPAIR_RETRY_MS, REPAIR_TRIES, TRIM_RETRY_MS
from raftlog.types import NOBODY, NodeId
from raftmq.client.errors import is_switched_off
from raftmq_wire.topic_identity import IDENTITY_FIELD, parse_identity
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic


@pytest.fixture
def pull(node: Any) -> Any:
    """Pulls from queue 0 of topic T, with the request's own subscription (sysFlag 4) unless told otherwise."""
    node.create_topic("T")

    def ask(offset: int, **fields: Any) -> Any:
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
            "subscription": "*",
        }
        return node.ask(fields.pop("code", 11), **(ext | fields))

    return ask


def numbers(reply: Any) -> tuple[int, int, int, int]:
    """code, nextBeginOffset, minOffset, maxOffset; every pull reply has all of them."""
    assert reply.ext["suggestWhichBrokerId"] == "0"
    return (reply.code, *(int(reply.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset")))


@pytest.mark.parametrize(
    ("stored", "low", "offset", "expected", "remark"),
    [
        (0, 0, 0, (19, 0, 0, 0), "NO_MESSAGE_IN_QUEUE"),
        (0, 0, 5, (21, 0, 0, 0), "NO_MESSAGE_IN_QUEUE"),
        (0, 0, -1, (21, 0, 0, 0), "OFFSET_TOO_SMALL"),
        (4, 2, 1, (21, 2, 2, 4), "OFFSET_TOO_SMALL"),
        (4, 0, 4, (19, 4, 0, 4), "OFFSET_OVERFLOW_ONE"),
        (4, 0, 9, (21, 4, 0, 4), "OFFSET_OVERFLOW_BADLY"),
        (4, 4, 4, (19, 4, 4, 4), "OFFSET_OVERFLOW_ONE"),
        (4, 0, 1, (0, 4, 0, 4), "FOUND"),
        (4, 2, 2, (0, 4, 2, 4), "FOUND"),
    ],
)
def test_decision_table(
    node: Any, pull: Any, stored: int, low: int, offset: int, expected: tuple[int, ...], remark: str
) -> None:
    if stored:
        node.store("T", *[b"m%d" % i for i in range(stored)])
    node.state.min_offset = lambda topic_id, queue_id: low
    for code in (11, 361):
        reply = pull(offset, code=code).answer
        assert (numbers(reply), reply.remark) == (expected, remark)


@pytest.mark.parametrize("subscription", ["*", "x"])
def test_what_is_trimmed_while_a_pull_looks_it_up_moves_the_offset(node: Any, pull: Any, subscription: str) -> None:
    """The apply lane works beside the event loop: a TRIM first removes rows, and then publishes the queue's bounds."""
    node.store("T", *[b"m%d" % number for number in range(4)], tag="x")
    fetch, node.state.fetch_packed = node.state.fetch_packed, lambda *_: b""
    request = pull(0, subscription=subscription)
    node.advance(TRIM_RETRY_MS)
    assert not request.replies
    node.state.min_offset, node.state.fetch_packed = lambda topic_id, queue_id: 3, fetch
    node.advance(TRIM_RETRY_MS)
    assert numbers(request.answer) == (21, 3, 3, 4)


def test_a_pull_does_not_wait_for_ever_for_bounds(node: Any, pull: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node.store("T", b"a", b"b")
    monkeypatch.setattr(node.state, "fetch_packed", lambda *_: b"")
    request = pull(0)
    for _ in range(REPAIR_TRIES):
        node.advance(TRIM_RETRY_MS)
    assert numbers(request.answer) == (20, 0, 0, 2), "ask again, from the same offset"


def test_body_is_the_stored_messages_in_one_read(node: Any, pull: Any) -> None:
    stored = node.store("T", b"a", b"b", b"c")
    assert pull(1).answer.body == b"".join(stored[1:])
    assert len(node.reads) == 1


def test_no_match_moves_on_and_says_retry(node: Any, pull: Any) -> None:
    node.store("T", b"a", b"b", tag="x")
    assert numbers(pull(0, subscription="y").answer) == (20, 2, 0, 2)
    more = node.store("T", b"c", tag="y")
    node.store("T", b"d", tag="x")
    reply = pull(0, subscription=" y || z ").answer
    assert (numbers(reply), reply.body) == ((0, 4, 0, 4), b"".join(more))


def test_a_filtered_pull_looks_at_a_bounded_number_of_items(node: Any, pull: Any) -> None:
    node.store("T", *[b"m"] * 5000, tag="x")
    assert numbers(pull(0, subscription="y").answer)[:2] == (20, 4096)
    assert numbers(pull(4096, subscription="y").answer)[:2] == (20, 5000)


@pytest.mark.parametrize("subscription", ["*", "x"])
def test_limits(node: Any, pull: Any, subscription: str) -> None:
    size = len(node.store("T", *[b"m" * 1000] * 10, tag="x")[0])
    ask = lambda **fields: pull(0, subscription=subscription, **fields).answer  # noqa: E731
    assert numbers(ask(maxMsgNums=3))[1] == 3
    assert numbers(ask(maxMsgNums=0))[1] == 1
    assert numbers(ask(maxMsgBytes=3 * size))[1] == 3
    assert numbers(ask(maxMsgBytes=3 * size - 1))[1] == 2
    assert numbers(ask(maxMsgBytes=1))[1] == 1, "at least one message, whatever its size"
    node.store("T", *[b"m" * 60_000] * 8, tag="x")
    assert numbers(pull(10, subscription=subscription).answer)[1] == 14, "256 KiB unless told"
    assert numbers(pull(10, subscription=subscription, maxMsgBytes=-1).answer)[1] == 14


def test_scattered_messages_are_read_one_by_one(node: Any, pull: Any) -> None:
    mine = []
    for _ in range(3):
        mine += node.store("T", b"mine")
        node.store("T", b"x" * 40_000, queue_id=1)
    assert pull(0).answer.body == b"".join(mine)
    assert len(node.reads) == 3


def test_interleaved_messages_are_sliced_out_of_one_read(node: Any, pull: Any) -> None:
    mine = []
    for _ in range(3):
        mine += node.store("T", b"m" * 1000)
        node.store("T", *[b"x" * 1000] * 5, queue_id=1)
    assert pull(0).answer.body == b"".join(mine)
    assert len(node.reads) == 1


def test_damaged_messages_are_never_served(node: Any, pull: Any) -> None:
    stored = node.store("T", *[b"m" * 50] * 4)
    items = node.state.fetch(node.state.topics["T"].id, 0, 0, 4)
    node.rotten = {items[2].position + 70}
    reply = pull(0).answer
    assert (numbers(reply), reply.body) == ((0, 2, 0, 4), b"".join(stored[:2])), "what is intact before it is served"
    item = (items[2].position, items[2].size)
    assert node.reported == [item], "somebody finds out what is damaged there"
    node.reads.clear()
    waiting = pull(2)
    assert node.reads.count(item) == 2, "read again once"
    node.advance(REPAIR_TRIES * REPAIR_RETRY_MS)
    assert numbers(waiting.answer)[:2] == (2, 2), "busy: come again"
    assert "offset 2" in (waiting.answer.remark or "")
    assert waiting.answer.body == b""
    assert numbers(pull(3).answer)[:2] == (0, 4)


def test_a_fenced_node_serves_nothing_and_says_come_again(node: Any, pull: Any) -> None:
    node.store("T", b"a")
    held = pull(1, sysFlag=4 | 2)
    node.is_fenced = True
    assert numbers(pull(0).answer)[:2] == (2, 0)
    assert "pull from another" in (pull(0).answer.remark or "")
    node.store("T", b"b")
    assert numbers(held.answer)[:2] == (2, 1), "a pull that waited is not served either"


def test_a_pull_waits_for_the_repair_of_its_first_message(node: Any, pull: Any) -> None:
    stored = node.store("T", *[b"m" * 50] * 2)
    items = node.state.fetch(node.state.topics["T"].id, 0, 0, 2)
    node.rotten = {items[0].position + 70}
    waiting = pull(0)
    node.advance(REPAIR_RETRY_MS)
    assert not waiting.replies
    node.rotten = set()
    node.advance(REPAIR_RETRY_MS)
    assert waiting.answer.body == b"".join(stored)


def test_a_read_that_was_wrong_once_is_healed_by_the_second(node: Any, pull: Any) -> None:
    stored = node.store("T", b"a", b"b")
    items = node.state.fetch(node.state.topics["T"].id, 0, 0, 2)
    node.rotten = {items[1].position + 3}
    read = node.read_log

    def heal_after_block(position: int, size: int) -> bytes:
        data = read(position, size)
        node.rotten = set()
        return data

    node.read_log = heal_after_block
    assert pull(0).answer.body == b"".join(stored)


def test_a_failed_block_read_falls_back_to_single_messages(node: Any, pull: Any) -> None:
    stored = node.store("T", b"a", b"bb")
    node.unreadable = {sum(map(len, stored))}
    assert pull(0).answer.body == b"".join(stored)
    node.unreadable |= {len(stored[0])}
    waiting = pull(0)
    node.advance(REPAIR_TRIES * REPAIR_RETRY_MS)
    assert waiting.answer.code == 2


def test_a_follower_never_moves_an_offset_that_may_be_ahead_of_it(node: Any, pull: Any) -> None:
    node.store("T", b"a")
    node.leader = NodeId(1)
    assert numbers(pull(9).answer) == (19, 9, 0, 1)
    held = pull(9, sysFlag=4 | 2)
    assert not held.replies
    node.advance(15_100)
    assert numbers(held.answer) == (19, 9, 0, 1)


def test_the_leader_moves_an_offset_only_when_the_group_confirms(node: Any, pull: Any) -> None:
    node.store("T", b"a")
    node.confirms = False
    assert numbers(pull(9).answer) == (19, 9, 0, 1)
    held = pull(9, sysFlag=4 | 2)
    assert not held.replies
    node.confirms = True
    node.advance(5_000)
    assert numbers(held.answer) == (21, 1, 0, 1)


def test_a_lagging_leader_that_catches_up_serves_instead_of_moving(node: Any, pull: Any) -> None:
    asked: list[Any] = []
    node.store("T", b"a")
    node.read_index = asked.append
    request = pull(2)
    more = node.store("T", b"b", b"c")
    asked.pop()(True)
    assert request.answer.body == more[1]


def test_refusals(node: Any, pull: Any) -> None:
    assert pull(0, topic="U").answer.code == 17
    assert pull(0, queueId=4).answer.code == 29
    assert pull(0, queueId=-1).answer.code == 29
    assert pull(0, maxMsgNums="many").answer.code == 29
    assert pull(0, maxMsgNums=None).answer.code == 29
    assert pull(0, queueOffset=1 << 63).answer.code == 29
    refused = pull(0, expressionType="SQL99", subscription="a > 1").answer
    assert (refused.code, refused.remark) == (1, "The broker does not support consumer to filter message by SQL99")
    node.create_topic("W", perm=2)
    off = [pull(0, topic="W").answer]
    node.command(PutGroup({"name": "g", "consume_enable": False}, False))
    off.append(pull(0).answer)
    for answer in off:
        assert (answer.code, is_switched_off(answer.code, answer.remark)) == (16, True), "our client waits"


def test_a_parked_pull_of_a_topic_that_may_not_be_read_any_more_gets_nothing(node: Any, pull: Any) -> None:
    parked = hold(pull, 0)
    node.command(CreateTopic({"name": "T", "read_queues": 4, "write_queues": 4, "perm": 2}, False))
    node.store("T", b"x")
    node.advance(0)
    assert (parked.answer.code, parked.answer.body) == (16, b"")


@pytest.mark.parametrize("grown", [True, False])
def test_a_parked_pull_of_a_group_that_is_switched_off_gets_nothing(node: Any, pull: Any, grown: bool) -> None:
    parked = hold(pull, 0)
    node.command(PutGroup({"name": "g", "consume_enable": False}, False))
    if grown:
        node.store("T", b"x")
    node.advance(0 if grown else 5_200)
    answer = parked.answer
    assert (is_switched_off(answer.code, answer.remark), answer.body) == (True, b"")


def test_without_own_subscription_the_groups_counts(node: Any, pull: Any) -> None:
    node.store("T", b"a", tag="x")
    wanted = node.store("T", b"b", tag="y")
    assert pull(0, sysFlag=0).answer.code == 24
    node.command(PutGroup({"name": "g"}, False))
    node.command(Subscribe("g", [("T", "TAG", "y", 100)]))
    assert pull(0, sysFlag=0, subVersion=100).answer.body == wanted[0]
    assert pull(0, sysFlag=0, subVersion=101, language="GO").answer.code == 25
    heartbeat = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
        b'[{"topic":"T","subString":"*","subVersion":101}]}]}'
    )
    node.leader = NodeId(1)
    assert node.ask(34, heartbeat).answer.code == 0
    assert numbers(pull(0, sysFlag=0, subVersion=101).answer)[:2] == (0, 2), "this node's heartbeats are newer"


@pytest.mark.parametrize(
    ("language", "version", "fields", "served"),
    [
        ("JAVA", 479, {"expressionType": "TAG"}, True),
        ("JAVA", 212, {}, True),
        ("CPP", 35, {}, True),
        ("JAVA", 479, {"expressionType": "SQL92"}, False),
        ("JAVA", 479, {"expressionType": "TAG", "sysFlag": 8}, False),
        ("JAVA", 121, {}, False),  # ali-ons lets messages without a tag through
        ("GO", 317, {"expressionType": "TAG"}, False),  # says so of SQL92 as well
        ("DOTNET", 401, {}, False),
    ],
)
def test_who_compares_tags_itself_need_not_wait_for_its_heartbeat(
    node: Any, pull: Any, language: str, version: int, fields: dict[str, Any], served: bool
) -> None:
    wanted = [*node.store("T", b"a", tag="x"), *node.store("T", b"b", tag="y")]
    node.command(PutGroup({"name": "g"}, False))
    node.command(Subscribe("g", [("T", "TAG", "y", 100)]))
    ask = {"sysFlag": 0, "subVersion": 101, "language": language, "version": version, **fields}
    answer = pull(0, **ask).answer
    assert (answer.code, answer.body) == ((0, b"".join(wanted)) if served else (25, b""))
    known = {**ask, "subVersion": 100, "sysFlag": 0}
    assert pull(0, **known).answer.body == wanted[1], "a subscription that is known filters"


def test_the_offset_that_rides_along_is_committed_by_the_leader_only(node: Any, pull: Any) -> None:
    node.store("T", b"a")
    topic_id = node.state.topics["T"].id
    pull(0, sysFlag=5, commitOffset=1)
    assert node.later == [], "no such group"
    node.command(PutGroup({"name": "g"}, False))
    pull(0, sysFlag=4, commitOffset=1)
    pull(0, sysFlag=5, commitOffset=-1)
    assert node.later == []
    pull(0, sysFlag=5, commitOffset=1)
    assert node.later == [("g", topic_id, 0, 1)]
    node.leader = NOBODY
    pull(0, sysFlag=5, commitOffset=2)
    assert node.later == [("g", topic_id, 0, 1)]


def test_an_offset_of_a_pull_that_was_held_elsewhere_is_not_committed(node: Any, pull: Any, connect: Any) -> None:
    """It was sent long ago: what the connection has committed since may be here already."""
    node.command(PutGroup({"name": "g"}, False))
    forwarded = connect()
    forwarded.forwarded = True
    pull(0, sysFlag=5, commitOffset=1, connection=forwarded)
    assert node.later == []


def test_an_offset_of_a_pull_that_waited_for_its_topic_is_not_committed(node: Any, pull: Any) -> None:
    node.command(PutGroup({"name": "g"}, False))
    node.leader = NOBODY
    waiting = pull(0, topic="U", sysFlag=5, commitOffset=1)
    node.create_topic("U")
    node.leader = node.node_id
    node.advance(60_000)
    assert waiting.replies
    assert node.later == []


# --- long polls ---


def hold(pull: Any, offset: int, **fields: Any) -> Any:
    request = pull(offset, sysFlag=4 | 2, **fields)
    assert not request.replies
    return request


def test_an_append_wakes_those_who_wait_for_its_queue(node: Any, pull: Any) -> None:
    here, there = hold(pull, 0), hold(pull, 0, queueId=1)
    stored = node.store("T", b"a")
    assert (numbers(here.answer), here.answer.body) == ((0, 1, 0, 1), stored[0])
    assert not there.replies
    node.store("T", b"b", queue_id=1)
    assert there.answer.code == 0


def test_a_filter_wakes_only_for_its_tag_and_remembers_what_it_passed(node: Any, pull: Any) -> None:
    first, second = hold(pull, 0, subscription="y"), hold(pull, 0, subscription="y")
    node.store("T", b"a", tag="x")
    assert not first.replies
    node.advance(14_000)
    node.store("T", b"b", tag="x")
    wanted = node.store("T", b"c", tag="y")
    assert (numbers(first.answer), first.answer.body) == ((0, 3, 0, 3), wanted[0])
    assert second.answer.body == wanted[0]
    third = hold(pull, 3, subscription="y")
    node.store("T", b"d", tag="x")
    node.advance(15_100)
    assert numbers(third.answer) == (19, 4, 0, 4), "what it has seen need not be scanned again"


def test_timeouts(node: Any, pull: Any) -> None:
    node.store("T", b"a")
    short, long = hold(pull, 1, suspendTimeoutMillis=1_000), hold(pull, 1, suspendTimeoutMillis=20_000)
    node.advance(999)
    assert not short.replies
    node.advance(101)
    assert numbers(short.answer) == (19, 1, 0, 1)
    node.advance(18_899)
    assert not long.replies
    node.advance(101)
    assert long.answer.code == 19
    assert pull(1, sysFlag=4 | 2, suspendTimeoutMillis=0).answer.code == 19
    node.advance(1_000)
    assert node.timers == 0, "no timer runs for nobody"
    again = hold(pull, 1, suspendTimeoutMillis=1_000)
    node.advance(1_100)
    assert again.answer.code == 19


def test_a_missed_wake_up_costs_at_most_five_seconds(node: Any, pull: Any) -> None:
    held = hold(pull, 0)
    node.tells_applied = False
    node.store("T", b"a")
    node.advance(4_900)
    assert not held.replies
    node.advance(200)
    assert held.answer.code == 0


def test_a_closed_connection_is_forgotten(node: Any, pull: Any, connect: Any) -> None:
    gone, stays = connect(), connect()
    requests = [hold(pull, 0, connection=gone), hold(pull, 0, connection=gone), hold(pull, 0, connection=stays)]
    gone.close()
    node.store("T", b"a")
    node.advance(20_000)
    assert [len(request.replies) for request in requests] == [0, 0, 1]
    assert node.timers == 0
    assert pull(1, sysFlag=4 | 2, connection=gone).replies == []


def test_an_error_answers_its_pull_and_disturbs_nobody(node: Any, pull: Any) -> None:
    bad, good = hold(pull, 0), hold(pull, 0, queueId=1)
    fetch = node.state.fetch_packed

    def failing(topic_id: int, queue_id: int, *rest: int) -> Any:
        if queue_id == 0:
            raise RuntimeError("as the test wants")
        return fetch(topic_id, queue_id, *rest)

    node.state.fetch_packed = failing
    node.store("T", b"a")
    node.store("T", b"b", queue_id=1)
    assert (bad.answer.code, good.answer.code) == (1, 0)


def test_a_topic_deleted_under_the_read(node: Any, pull: Any) -> None:
    node.store("T", b"a")

    def delete_first(*_: int) -> Any:
        node.command(DeleteTopic("T"))
        raise RuntimeError("rows are gone")

    node.state.fetch_packed = delete_first
    assert pull(0).answer.code == 17


def test_a_deleted_topic_ends_its_long_polls(node: Any, pull: Any) -> None:
    held = hold(pull, 0)
    node.command(DeleteTopic("T"))
    node.advance(5_100)
    assert held.answer.code == 17


def test_an_offset_of_a_topic_that_is_gone_is_not_read(node: Any, pull: Any) -> None:
    """However many messages the new one has; a client that does not say what it counts in goes on, as in RocketMQ."""
    node.store("T", *[b"old"] * 3)
    counted = node.topic_identity("T")
    assert pull(2, **counted).answer.code == 0
    node.command(DeleteTopic("T"))
    node.create_topic("T")
    node.store("T", *[b"new"] * 5)
    for code in (11, 361):
        refused = pull(2, code=code, sysFlag=5, commitOffset=2, **counted).answer
        assert (refused.code, refused.remark.split(":")[0]) == (17, "offset 2 means nothing in topic T")
    assert node.later == []
    assert pull(2, **node.topic_identity("T")).answer.code == 0
    assert pull(2).answer.code == 0


def test_a_follower_waits_for_the_topic_in_which_an_offset_counts(node: Any, pull: Any) -> None:
    node.store("T", b"old")
    now = parse_identity(node.topic_identity("T")[IDENTITY_FIELD])
    newer = {IDENTITY_FIELD: str(now._replace(topic_id=now.topic_id + 1))}
    node.leader = NodeId(1)
    waiting = pull(0, **newer)
    node.advance(100)
    assert not waiting.replies
    node.command(DeleteTopic("T"))
    node.create_topic("T")
    node.store("T", b"new")
    node.advance(100)
    assert b"new" in waiting.answer.body
    again = pull(0, **{IDENTITY_FIELD: str(now._replace(topic_id=now.topic_id + 2))})
    node.advance(2_000)
    assert again.answer.code == 14, "the client asks the leader"


def test_bounds_are_named(node_with: Any, connect: Any) -> None:
    node = node_with(**{"limits.long_polls_max": 3, "limits.connection_long_polls_max": 2})
    node.create_topic("T")

    def ask(connection: Any) -> Any:
        return node.ask(
            11,
            connection=connection,
            consumerGroup="g",
            topic="T",
            queueId=0,
            queueOffset=0,
            maxMsgNums=32,
            sysFlag=6,
            commitOffset=0,
            suspendTimeoutMillis=1000,
            subVersion=0,
        )

    one, two = connect(), connect()
    held = [ask(one), ask(one)]
    answer = ask(one).answer
    assert numbers(answer) == (2, 0, 0, 0)
    assert "limits.connection_long_polls_max is 2" in (answer.remark or "")
    held.append(ask(two))
    assert "limits.long_polls_max is 3" in (ask(two).answer.remark or "")
    node.store("T", b"a")
    assert [request.answer.code for request in held] == [0, 0, 0]
    assert not node.ask(
        11,
        connection=one,
        consumerGroup="g",
        topic="T",
        queueId=0,
        queueOffset=1,
        maxMsgNums=32,
        sysFlag=6,
        commitOffset=0,
        suspendTimeoutMillis=1000,
        subVersion=0,
    ).replies, "there is room again"


def test_a_follower_waits_for_a_topic_that_may_be_on_its_way(node: Any, pull: Any) -> None:
    node.leader = 1
    early = pull(0, topic="late", suspendTimeoutMillis=0)
    node.advance(200)
    assert not early.replies
    node.create_topic("late")
    node.advance(100)
    assert early.answer.code == 19
    never = pull(0, topic="never")
    node.advance(900)
    assert not never.replies
    node.advance(200)
    assert never.answer.code == 17


def test_what_this_node_does_not_have_is_no_damage(node: Any, pull: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = node.store("T", *[b"m" * 50] * 4)
    items = node.state.fetch(node.state.topics["T"].id, 0, 0, 4)
    node.log_begins_at = items[2].position
    assert pull(2).answer.body == b"".join(stored[2:])
    waiting = pull(0)
    assert not waiting.replies, "a TRIM may be about to be applied"
    for _ in range(REPAIR_TRIES):
        node.advance(REPAIR_RETRY_MS)
    assert (waiting.answer.code, int(waiting.answer.ext["nextBeginOffset"])) == (2, 0)
    assert "is not on node 2 until it is fetched" in waiting.answer.remark
    waiting = pull(0)
    monkeypatch.setattr(node.state, "min_offset", lambda topic_id, queue_id: 2)
    node.advance(REPAIR_RETRY_MS)
    assert numbers(waiting.answer) == (21, 2, 2, 4)
    assert node.reported == []
