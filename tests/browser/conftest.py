"""A live cluster under a small load, and a browser that looks at it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from raftmq.client import connect
from tests.support.chromium import Page, browser
from tests.support.live_nodes import LiveCluster, live_cluster
from tests.support.pace import at_most

__all__ = ["live_cluster"]

HOSTILE = (
    '<script>window.pwned = 1</script><img src="x" onerror="window.pwned = 1"><svg onload="window.pwned = 1">'
    "<a href=\"javascript:window.pwned = 1\">x</a>' onmouseover='window.pwned = 1"
)
"""A body that a page must show as it is."""
ORDERS, HOSTS = "orders", "hostile"
GROUP = "billing"
LONG_TOPIC, LONG_GROUP = "t" * 120, "g" * 100
"""Names without a place to break."""
PAUSE_S = 0.05


class Load:
    """Sends to `orders` until it is held; a consumer of `billing` reads half of what there is."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def hold(self) -> None:
        """No more messages."""
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        with connect(self._servers) as mq, mq.producer(timeout_s=at_most(60)) as producer:
            for number in itertools.count():
                if self._ended.wait(PAUSE_S):
                    return
                producer.send_soon(ORDERS, b"order %d" % number, queue_id=number % 4, key=f"k{number}")


@pytest.fixture(scope="module")
def cluster(live_cluster: LiveCluster) -> LiveCluster:
    """A cluster with two topics, a group that is behind in one of them, and a message with a hostile body."""
    live_cluster.leader()
    for name in (ORDERS, HOSTS, LONG_TOPIC):
        live_cluster.ask(1, "/v1/topics", "POST", {"name": name, "queues": 4})
    with connect(live_cluster.servers) as mq:
        for number in range(40):
            mq.send(ORDERS, b"before %d" % number, queue_id=number % 4)
        mq.send(HOSTS, HOSTILE.encode(), queue_id=0, key="<b>key</b>", tag="<i>tag</i>")
        mq.send(HOSTS, bytes(range(256)), queue_id=0)
        with mq.consumer(GROUP, ORDERS) as consumer:
            for _ in range(20):
                next(consumer)
        mq.send(LONG_TOPIC, b"x" * 5000, queue_id=0, key="k" * 200, tag="g" * 120, properties={"p" * 100: "v" * 300})
        with mq.consumer(LONG_GROUP, LONG_TOPIC) as consumer:
            next(consumer)
    return live_cluster


@pytest.fixture
def load(cluster: LiveCluster) -> Iterator[Load]:
    """Runs beside the test."""
    running = Load(cluster.servers)
    yield running
    running.hold()


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A tab of a new browser."""
    async with browser(tmp_path / "profile") as tab:
        yield tab
