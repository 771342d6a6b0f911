"""A topic takes messages in fewer groups of brokers while it is written and read, by command and by itself: two groups
of one node each."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.broker.topics import SPREAD_HOME
from cluster.replication.drain_grace import GRACE_MS
from raftmq.client import connect
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import free_base_port
from raftmq_wire.queue_numbers import group_of
from tests.raftmq.commands.test_drain_live import ELSEWHERE_ALONE, GROUP, TOPIC, Run, Writer
from tests.raftmq.commands.test_drain_live import run as run  # a fixture
from tests.support.pace import at_most
from tests.support.wait_until import LONG_S, wait

pytestmark = [pytest.mark.live, pytest.mark.ci, pytest.mark.timeout(400)]
READ_OUT_S = at_most(GRACE_MS / 1000 + 60)
CALM, LATE = "calm", "late"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("gather") / "data")
    made.up(1, free_base_port(8), groups=2)
    yield made
    made.down()


def test_topics_are_gathered_under_work(cluster: LocalCluster, run: Run) -> None:
    first = AdminApi(addresses_of(cluster.of_group(1)))

    def set_spread(how: str) -> None:
        values = {"topics.spread": how, "topics.gather_after_ms": 5_000}
        first.put("/v1/config", {"values": values, "author": "test", "reason": ""})

    set_spread("auto")
    for name in (TOPIC, LATE):
        first.post("/v1/topics", {"name": name, "queues": 2})
    first.post("/v1/topics", {"name": CALM, "queues": 2, "attributes": {SPREAD_HOME: "1"}})

    def places(name: str) -> dict[int, int]:
        topic = run("topic", "describe", name)[1]["topic"]
        return {row["group"]: row["write_queues"] for row in topic["queues_in_groups"]}

    wait(lambda: places(CALM) == {1: 2, 2: 0}, "what was spread by itself is gathered by itself")
    set_spread("off")  # on a busy machine every leader counts as busy, and a topic with some messages as hot
    read: dict[int, list[int]] = defaultdict(list)

    def reads(consumer: Any) -> None:  # and commits what it has read: else nothing would ever be read out
        consumer.run(lambda message: read[message.queue_id].append(int(message.body)), commit_every_s=1)

    with connect(cluster.servers) as mq, mq.consumer(GROUP, TOPIC) as consumer, mq.producer() as producer:
        reader = threading.Thread(target=reads, args=(consumer,), daemon=True)
        reader.start()
        with mq.consumer("asleep", LATE, follow=False) as sleeper:  # a group that is there, and goes away
            list(sleeper)
        while 2 not in {group_of(producer.send(LATE, b"unread").queue_id) for _ in range(8)}:
            pass
        with Writer(mq) as writer:
            wait(lambda: writer.groups_of_last() == {1, 2}, "both groups store messages")
            for name in (TOPIC, LATE):
                code, told = run("topic", "gather", name, "--in-group", "1", "--yes")
                assert (code, places(name)) == (0, {1: 2, 2: 0}), told
            assert "group 2 is read out" in run("topic", "describe", TOPIC, as_json=False)[1]
            wait(
                lambda: writer.errors or (len(writer.sent) > ELSEWHERE_ALONE and writer.groups_of_last() == {1}),
                "the producer sends to the first group alone",
                patience_s=2 * LONG_S,
            )
            wait(lambda: places(TOPIC) == {1: 2}, "the topic has left", patience_s=READ_OUT_S, every_s=1)
        assert not writer.errors, "nothing is refused of who asks for routes"
        wait(lambda: sum(map(len, read.values())) >= len(writer.sent), "all is read", progress=lambda: len(read))
        by_queue: dict[int, list[int]] = defaultdict(list)
        for queue, number in writer.sent:
            by_queue[queue].append(number)
        assert dict(read) == dict(by_queue), "each message once, in the order of its queue"
        assert {group_of(queue) for queue in by_queue} == {1, 2}
        wait(lambda: places(CALM) == {1: 2}, "nobody has read anything there, and nothing is left", every_s=1)
        assert places(LATE) == {1: 2, 2: 0}, "a group has yet to read"
        with mq.consumer("asleep", LATE, follow=False) as woken:
            assert 2 in {group_of(message.queue_id) for message in woken}, "nothing unread is hidden"
        wait(lambda: places(LATE) == {1: 2}, "it is read out", every_s=1)
        assert run("topic", "spread", TOPIC, "--yes")[0] == 0
        assert places(TOPIC) == {1: 2, 2: 2}
        wait(
            lambda: group_of(producer.send(TOPIC, b"-1").queue_id) == 2,
            "it is written in both again",
            patience_s=2 * LONG_S,
        )
