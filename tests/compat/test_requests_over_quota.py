"""How many requests reach a node for one message that is stored, when a producer sends at three times its quota.

With less in flight than a leader holds back, a client is slowed down and sends nothing twice. With more, or with the
hold off, the rest is refused, and what the client does then is printed. All is counted by the nodes; nothing is timed.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from tests.compat.places import stored_in
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

Start = Callable[..., Any]
QUOTA = 50
"""Messages a second."""
ASKED = 3 * QUOTA
HELD = 4 * QUOTA // 5
"""Messages in flight that the quota lets through in 0.8 s."""
MANY = 3 * QUOTA
"""The same in 3 s: two thirds of it are more than a leader holds back."""
COUNT = 10 * QUOTA
REQUESTS_MAX = 1.2
"""Requests for one message that is stored, of a client that is only slowed down."""
OURS = "ours"
KINDS = ("java", "java-newest", "java-oldest", "go", "cpp", "js", OURS)
SAMPLE = re.compile(r"^(rocketmq_rpc_latency_count|raftmq_requests_refused_total)\{(.*)\} (\S+)$", re.MULTILINE)


class Sends(NamedTuple):
    """The sends that came to all nodes together."""

    answered: float
    """Those that were proposed and answered."""
    refused: float

    def since(self, before: Sends) -> Sends:
        """Returns those that came after these."""
        return Sends(self.answered - before.answered, self.refused - before.refused)

    @property
    def all(self) -> float:
        """The requests."""
        return self.answered + self.refused


def counted(live: LocalCluster) -> Sends:
    """Returns the sends that the nodes have counted."""
    answered = refused = 0.0
    for node in live.nodes:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/metrics", timeout=at_most(10)) as reply:
            for name, labels, value in SAMPLE.findall(reply.read().decode()):
                if name == "raftmq_requests_refused_total":
                    refused += float(value)
                elif 'request_code="send_message"' in labels:
                    answered += float(value)
    return Sends(answered, refused)


@pytest.fixture
def topic(request: pytest.FixtureRequest, live: LocalCluster, mq: raftmq.Client) -> Iterator[str]:
    name = f"rate-{request.node.name.translate(str.maketrans('[]', '--')).removeprefix('test_')}"[:100].strip("-")
    mq.admin.create_topic(name, 4)
    api = AdminApi([address_of(node) for node in live.nodes])
    api.put("/v1/quotas", {"quotas": [{"subject": f"topic={name}", "limits": {"send_messages": QUOTA}}]})
    yield name
    api.delete(f"/v1/quotas/topic={name}")


@pytest.fixture
def hold_off(live: LocalCluster) -> Iterator[None]:
    """The nodes refuse at once what is over a quota."""
    before = [node.config_path.read_text() for node in live.nodes]
    for node, text in zip(live.nodes, before, strict=True):
        node.config_path.write_text(text + "\n[flow]\nhold_ms = 0\n")
        AdminApi([address_of(node)]).post("/v1/config/reload", {})
    yield
    for node, text in zip(live.nodes, before, strict=True):
        node.config_path.write_text(text)
        AdminApi([address_of(node)]).post("/v1/config/reload", {})


def send_with(live: LocalCluster, start: Start, kind: str, topic: str, in_flight: int, count: int) -> None:
    """Has a client send `count` messages, ASKED a second, with so many in flight at most; each once."""
    if kind == OURS:
        with raftmq.connect(live.servers) as client, client.producer(timeout_s=3) as producer:
            send_in_threads(producer, topic, in_flight, count)
        return
    arguments = ("--group", f"{topic}-senders", "--count", str(count), "--threads", str(in_flight))
    sender = start(kind, "produce", topic, *arguments, "--rate", str(ASKED))
    sender.wait("done", timeout_s=at_most(240))


def send_in_threads(producer: Any, topic: str, in_flight: int, count: int) -> None:
    """The same with our client."""
    began, counting = time.monotonic(), threading.Lock()
    numbers = iter(range(count))

    def send() -> None:
        while True:
            with counting:
                number = next(numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, began + number / ASKED - time.monotonic()))
            with suppress(raftmq.Refused):
                producer.send(topic, b"body", key=str(number))

    with ThreadPoolExecutor(in_flight) as threads:
        for each in [threads.submit(send) for _ in range(in_flight)]:
            each.result()


def measured(
    live: LocalCluster, mq: raftmq.Client, start: Start, kind: str, topic: str, in_flight: int, count: int
) -> tuple[Sends, int]:
    """Returns the requests that came, and the number of messages that are stored."""
    before = counted(live)
    send_with(live, start, kind, topic, in_flight, count)
    return counted(live).since(before), len(stored_in(mq, topic))


def told(kind: str, how: str, sends: Sends, stored: int) -> str:
    return (
        f"{kind:12} {how:22} {sends.all:6.0f} requests, {stored:5} stored, {sends.refused:6.0f} refused: "
        f"{sends.all / stored:5.2f} for one that is stored"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_is_slowed_down_sends_hardly_anything_twice(
    live: LocalCluster, mq: raftmq.Client, start: Start, tell: Callable[[str], None], topic: str, kind: str
) -> None:
    sends, stored = measured(live, mq, start, kind, topic, HELD, COUNT)
    tell(told(kind, "0.8 s in flight", sends, stored))
    assert stored >= COUNT * 0.95
    assert sends.all >= stored
    assert sends.all <= REQUESTS_MAX * stored


@pytest.mark.parametrize("kind", KINDS)
def test_with_more_in_flight_the_rest_is_refused(
    live: LocalCluster, mq: raftmq.Client, start: Start, tell: Callable[[str], None], topic: str, kind: str
) -> None:
    sends, stored = measured(live, mq, start, kind, topic, MANY, 2 * COUNT)
    tell(told(kind, "3 s in flight", sends, stored))
    assert sends.all >= stored > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("hold_off")
def test_without_the_hold_all_that_is_over_is_refused(
    live: LocalCluster, mq: raftmq.Client, start: Start, tell: Callable[[str], None], topic: str, kind: str
) -> None:
    sends, stored = measured(live, mq, start, kind, topic, HELD, 2 * COUNT)
    tell(told(kind, "0.8 s, without a hold", sends, stored))
    assert sends.all >= stored > 0
    assert sends.refused > 0
