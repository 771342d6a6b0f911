"""What unmodified clients do when a send is over its quota: it waits a second, is refused with 215, and nothing of it
is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq_wire.errors import LocalError
from tests.compat.places import stored_in
from tests.support.wait_until import wait

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

Start = Callable[..., Any]
COUNT = 4
BYTES_A_SECOND = 10
"""A message has some hundred bytes: after the first one its sender has nothing left for the rest of the test."""


@pytest.fixture
def topic(request: pytest.FixtureRequest, live: LocalCluster, mq: raftmq.Client) -> Iterator[str]:
    name = f"quota-{request.node.callspec.params['kind']}"
    mq.admin.create_topic(name, 2)
    api = AdminApi([address_of(node) for node in live.nodes])
    limits = {"send_bytes": BYTES_A_SECOND}
    api.put("/v1/quotas", {"quotas": [{"subject": f"topic={name}", "limits": limits}]})
    yield name
    with suppress(LocalError):
        api.delete(f"/v1/quotas/topic={name}")


def refused(live: LocalCluster, topic: str) -> int:
    api = AdminApi([address_of(node) for node in live.nodes])
    owners = api.local("/v1/quotas/refused")["owners"]
    return sum(each["refused"] for each in owners if each["owner"] == f"topic={topic}")


@pytest.mark.parametrize(
    ("kind", "asks", "told"),
    [
        ("java", 1, "CODE: 215"),
        ("java-newest", 1, "CODE: 215"),
        ("java-oldest", 1, "CODE: 215"),
        ("cpp", 5, "No route info of this topic"),  # it repeats whatever was refused, and forgets why
        ("js", 1, "(quota topic=quota-js)"),
    ],
)
def test_how_often_a_producer_asks_and_what_it_says(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str, asks: int, told: str
) -> None:
    sender = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", str(COUNT))
    sender.wait("done", timeout_s=120)
    errors = [line["error"] for line in sender.lines("send") if "error" in line]
    assert len(errors) == COUNT - 1, sender.story()
    assert all(told in error for error in errors), errors
    assert len(stored_in(mq, topic)) == 1
    assert refused(live, topic) == asks * len(errors), errors


@pytest.mark.parametrize("kind", ["go"])
def test_how_often_gos_producer_asks(
    live: LocalCluster, mq: raftmq.Client, start: Start, topic: str, kind: str
) -> None:
    """Our program sends each message until it is stored; the client was told to repeat a send twice."""
    sender = start(kind, "send", topic, "go", "2", "1000")
    wait(lambda: refused(live, topic) >= 4, lambda: refused(live, topic))
    asked = refused(live, topic)
    AdminApi([address_of(node) for node in live.nodes]).delete(f"/v1/quotas/topic={topic}")
    (done,) = sender.wait("done")
    assert done["failed"] >= asked - 1, "it asks once for each try: 215 is nothing that it repeats"
    assert len(stored_in(mq, topic)) == 2


def test_our_client_waits_and_then_says_that_nothing_was_stored(live: LocalCluster, mq: raftmq.Client) -> None:
    mq.admin.create_topic("quota-ours", 2)
    api = AdminApi([address_of(node) for node in live.nodes])
    api.put("/v1/quotas", {"quotas": [{"subject": "topic=quota-ours", "limits": {"send_bytes": BYTES_A_SECOND}}]})
    with raftmq.connect(live.servers) as client, client.producer(timeout_s=4) as producer:
        producer.send("quota-ours", b"x" * 500)
        with pytest.raises(raftmq.Refused) as told:
            producer.send("quota-ours", b"x" * 500)
    assert told.value.retryable
    assert "quota topic=quota-ours" in str(told.value)
    api.delete("/v1/quotas/topic=quota-ours")
    assert len(stored_in(mq, "quota-ours")) == 1
