"""Our client in clusters of two and of four groups of brokers: what it sends, reads, commits, retries and decides is in
the group that has the queue; and what still works while one of the groups is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from raftmq import RaftMQError, Refused, Resolution, Unknown, Unreachable
from raftmq.client import connect
from raftmq.client.sync import Client
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.queue_numbers import group_of, number_of
from tests.support.pace import at_most
from tests.support.small_segments import small_segments
from tests.support.wait_until import wait

pytestmark = [pytest.mark.live, pytest.mark.ci]


@pytest.fixture(scope="module", params=[2, 4], ids=lambda count: f"{count} groups")
def groups(request: pytest.FixtureRequest) -> list[int]:
    """The groups of the cluster."""
    return [*range(1, 1 + request.param)]


@pytest.fixture(scope="module")
def cluster(groups: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("groups") / "data")
    with small_segments():
        made.up(1, free_base_port(4 * len(groups)), groups=len(groups), timeout_s=at_most(60))
    yield made
    made.down()


@pytest.fixture(scope="module")
def queues(groups: list[int]) -> list[int]:
    """The queues of a topic, two in each group."""
    return [number_of(group, queue) for group in groups for queue in (0, 1)]


@pytest.fixture
def servers(cluster: LocalCluster) -> str:
    return ";".join(f"127.0.0.1:{node.namesrv_port}" for node in cluster.nodes)


@pytest.fixture
def mq(servers: str) -> Iterator[Client]:
    with connect(servers) as made:
        yield made


@pytest.fixture
def topic(mq: Client) -> str:
    """A topic with two queues in each group."""
    name = f"orders-{uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=2)
    return name


def read_on(mq: Client, group: str, topic: str, **options: Any) -> list[Any]:
    with mq.consumer(group, topic, follow=False, **options) as consumer:
        return list(consumer)


def test_messages_of_all_queues_are_read_once(mq: Client, topic: str, queues: list[int], groups: list[int]) -> None:
    assert [queue.queue_id for queue in mq.admin.describe_topic(topic).queues] == queues
    results = [mq.send(topic, b"%d" % number) for number in range(2 * len(queues))]
    for group in groups[1:]:
        wait(lambda group=group: group_of(mq.send(topic, b"x").queue_id) == group, f"group {group} has a leader")  # type: ignore[misc]
    results += [mq.send(topic, b"x") for _ in range(3 * len(queues))]
    assert {result.queue_id for result in results} == {*queues}
    assert {*Counter(result.queue_id for result in results[-3 * len(queues) :]).values()} == {3}
    batch = mq.send_batch(topic, [b"x", b"y"], queue_id=queues[-1])
    assert [each.queue_id for each in batch] == [queues[-1]] * 2
    stored = mq.admin.describe_topic(topic).messages
    read = read_on(mq, "billing", topic)
    assert len({(each.queue_id, each.queue_offset) for each in read}) == len(read) == stored
    assert {each.queue_id for each in read} == {*queues}
    assert [each.lag for each in mq.admin.offsets("billing", topic)] == [0] * len(queues)
    assert not read_on(mq, "billing", topic)
    found = next(each for each in read if each.body == b"y")
    assert [each.place for each in mq.admin.query_messages(topic, found.message_id, unique=True)] == [found.place]
    assert mq.admin.view_message(topic, found.position, group=groups[-1]) == found
    assert f"queue {groups[-1]}/1 offset" in found.place


def test_a_key_keeps_its_queue(mq: Client, servers: str, topic: str, queues: list[int]) -> None:
    def chosen(client: Client) -> list[int]:
        return [client.send(topic, b"x", ordering_key=f"k{key}").queue_id for key in range(48)]

    with connect(servers) as other:
        assert chosen(mq) == chosen(other)
    assert {*chosen(mq)} == {*queues}


def test_two_ordered_readers_share_the_queues_of_all_groups(
    mq: Client, servers: str, topic: str, queues: list[int]
) -> None:
    for number in range(10 * len(queues)):
        mq.send(topic, b"%d" % number, queue_id=queues[number % len(queues)])
    with (
        connect(servers) as other,
        mq.consumer("pair", topic, ordered=True, max_wait_s=1) as first,
        other.consumer("pair", topic, ordered=True, max_wait_s=1) as second,
    ):
        wait(lambda: 2 * len(first.positions()) == 2 * len(second.positions()) == len(queues), "each has half of them")
        assert {*first.positions(), *second.positions()} == {*queues}
        read = [*first, *second]
    by_queue: dict[int, list[int]] = {}
    for each in read:
        by_queue.setdefault(each.queue_id, []).append(each.queue_offset)
    assert {queue: sorted({*offsets}) for queue, offsets in by_queue.items()} == {q: [*range(10)] for q in queues}


def test_a_message_goes_back_to_its_own_group(mq: Client, topic: str, queues: list[int], groups: list[int]) -> None:
    group = f"failing-{uuid4().hex[:8]}"
    for queue in queues[::2]:
        mq.send(topic, b"poor", queue_id=queue)
    with mq.consumer(group, topic, max_wait_s=20) as consumer:
        again = []
        for message in consumer:
            if message.reconsume_times:
                again.append(message)
                consumer.dead_letter(message)
                if len(again) == len(groups):
                    break
            else:
                consumer.retry(message, after=1)
    assert sorted(group_of(message.queue_id) for message in again) == groups
    letters = mq.admin.describe_topic(f"%DLQ%{group}")
    assert sorted((group_of(each.queue_id), each.max_offset) for each in letters.queues) == [(g, 1) for g in groups]


def test_a_transaction_is_decided_in_its_group(mq: Client, topic: str, queues: list[int]) -> None:
    asked: list[int] = []

    def check(message: Any) -> Resolution:
        asked.append(message.queue_id)
        return Resolution.COMMIT

    with mq.transaction_producer(f"shop-{uuid4().hex[:8]}", check=check) as producer:
        for queue in queues[::2]:
            with producer.transaction(topic, b"committed", queue_id=queue):
                pass
            with pytest.raises(ZeroDivisionError), producer.transaction(topic, b"rolled back", queue_id=queue):
                raise ZeroDivisionError
            left = producer.transaction(topic, b"checked", queue_id=queue, check_after_s=1)
            left.begin()
            left.leave_to_check()
        wait(lambda: {*asked} == {*queues[::2]}, "each group asks", patience_s=60)
        wait(lambda: mq.admin.describe_topic(topic).messages == len(queues), "what the check said is carried out")
    found = [(each.queue_id, each.body) for each in read_on(mq, "audit", topic)]
    assert sorted(found) == sorted((queue, body) for queue in queues[::2] for body in (b"checked", b"committed"))


def test_a_delayed_message_comes_in_its_queue(mq: Client, topic: str, queues: list[int]) -> None:
    for queue in queues:
        mq.send(topic, b"later", queue_id=queue, delay=1)
    handle = mq.send(topic, b"never", queue_id=queues[-1], delay=60).recall_handle
    mq.recall(topic, handle)
    wait(lambda: mq.admin.describe_topic(topic).messages == len(queues), "the messages come")
    assert sorted(each.queue_id for each in read_on(mq, "late", topic)) == queues


def test_groups_are_chosen_for_a_topic(mq: Client, queues: list[int]) -> None:
    name = f"second-{uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=3, groups=[2])
    assert [queue.queue_id for queue in mq.admin.describe_topic(name).queues] == [number_of(2, q) for q in range(3)]
    mq.admin.create_topic(name, queues=2)
    assert len(mq.admin.describe_topic(name).queues) == 2, "it keeps its groups"
    mq.admin.create_topic(name, queues=1, groups=[1])
    assert [queue.queue_id for queue in mq.admin.describe_topic(name).queues] == [0, *queues[2:4]]
    with pytest.raises(Refused, match="no group 7"):
        mq.admin.create_topic(name, groups=[7])
    mq.admin.delete_topic(name)
    wait(lambda: name not in mq.admin.topics(), "it is gone in both groups")


def test_a_change_that_one_group_refuses_is_known_to_be_done_in_the_others(mq: Client) -> None:
    """Seed 995000746: the second group had no leader, and a topic that the first one had made counted as failed."""
    name = f"in-part-{uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=2)
    mq.send(name, b"unread", queue_id=number_of(2, 1))
    with pytest.raises(Unknown, match="it is done in group 1") as caught:
        mq.admin.create_topic(name, queues=1)
    assert "now=True" in caught.value.hint
    mq.admin.create_topic(name, queues=1, now=True)
    assert [queue.queue_id for queue in mq.admin.describe_topic(name).hidden] == [number_of(2, 1)]


@pytest.mark.parametrize("queue", [2, number_of(2, 2), number_of(5, 0)])
def test_a_queue_that_there_is_not(mq: Client, topic: str, queue: int) -> None:
    with pytest.raises(Refused):
        mq.send(topic, b"x", queue_id=queue)
    with pytest.raises(Refused, match="queue"):
        mq.pull(topic, queue, 0)


@pytest.mark.parametrize("away", [1, 2])
def test_what_works_while_a_group_is_away(
    cluster: LocalCluster, servers: str, mq: Client, topic: str, away: int, queues: list[int]
) -> None:
    """Its queues wait. The others take messages, are read and committed, by clients that were there before and by those
    that come; what the first group decides is refused while it is the one that is away."""
    there = [queue for queue in queues if group_of(queue) != away]
    gone = [queue for queue in queues if group_of(queue) == away]
    group = f"readers-{uuid4().hex[:8]}"
    mq.admin.create_group(group)
    for queue in queues:
        mq.send(topic, b"before", queue_id=queue)
    assert len(read_on(mq, group, topic)) == len(queues)  # so each group has heard of the consumer group
    for queue in there:
        mq.send(topic, b"between", queue_id=queue)
    victim = cluster.of_group(away)[0]
    cluster.kill(victim.name)
    with pytest.raises(RaftMQError):  # what is sent before the client has seen the end of its connection waits there
        mq.pull(topic, gone[0], 0, timeout_s=1)
    try:
        with connect(servers, timeout_s=3) as new:
            for client in (mq, new):
                for queue in there:
                    assert client.send(topic, b"while", queue_id=queue).queue_id == queue
                assert {client.send(topic, b"any").queue_id for _ in there * 2} == {*there}
                assert client.pull(topic, there[0], 0).messages[0].body == b"before"
                assert topic in client.admin.topics()
            with pytest.raises(Unreachable):
                new.send(topic, b"x", queue_id=gone[0])
            with new.consumer(group, topic, max_wait_s=2) as consumer:
                read = list(consumer)
            assert {each.queue_id for each in read} == {*there}
            each_way = len(there)
            assert Counter(each.body for each in read) == {
                b"between": each_way,
                b"while": 2 * each_way,
                b"any": 4 * each_way,
            }
            assert [new.admin.committed(group, topic, queue) for queue in there] == [
                new.admin.max_offset(topic, queue) for queue in there
            ]
            if away == 1:
                with pytest.raises(RaftMQError, match="create topic"):
                    new.admin.create_topic("made-without-the-first", groups=[2])
    finally:
        cluster.restart(victim.name)
    wait(lambda: mq.send(topic, b"after", queue_id=gone[0]), "the group is back")
    rest = read_on(mq, group, topic)
    assert [each.body for each in rest] == [b"after"]
