"""slave_read_enable with unmodified clients: one that is far behind is sent to a follower, and reads all once."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

MESSAGES = 5000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that send every reader to a follower that has not read all."""
    live = LocalCluster(tmp_path_factory.mktemp("followers") / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAFTMQ_MODES__SLAVE_READ_ENABLE", "true")
        patch.setenv("RAFTMQ_MODES__ACCESS_MESSAGE_IN_MEMORY_MAX_RATIO", "0")
        live.up(3, free_base_port(12))
    yield live
    live.down()


def handed_out(live: LocalCluster, topic: str) -> dict[int, float]:
    """node id -> messages of the topic that it gave to readers."""
    found = {}
    for node in live.nodes:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/metrics", timeout=at_most(10)) as reply:
            lines = reply.read().decode().splitlines()
        mark = f'rocketmq_messages_out_total{{topic="{topic}"}}'
        found[node.id] = sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(mark))
    return found


@pytest.mark.parametrize("kind", ["cpp", "js", "java"])
def test_a_reader_that_is_behind_reads_from_followers(live: LocalCluster, start: Callable[..., Any], kind: str) -> None:
    topic = f"far-{kind}"
    with raftmq.connect(live.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        with mq.producer() as producer:
            for number in range(MESSAGES):
                producer.send_soon(topic, b"%d" % number, key=f"{kind}-{number}", tag="even")
    reader = start(kind, "consume", topic, "--group", f"far-readers-{kind}")
    reader.wait("message", MESSAGES, timeout_s=at_most(120))
    times = Counter(line["key"] for line in reader.lines("message"))
    assert len(times) == MESSAGES
    leader = live.wait_leader()
    out = handed_out(live, topic)
    assert sum(count for node, count in out.items() if node != leader) > MESSAGES / 2, out
