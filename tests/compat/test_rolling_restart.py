"""Every node restarts by the documented command, under load of our client and of a Java client of RocketMQ 5.3: no send
fails, none that was acknowledged is missing.

With the default grace of 0 a Java producer meets the restart of its leader and turns to another node's name; with 35 s
it has moved before.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import raftmq
from raftmq.cli import run
from raftmq.client.errors import RaftMQError
from raftmq.local.cluster import LocalCluster
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

QUEUES = 4
BEFORE = AFTER = 200
PATIENCE_S = at_most(60)


class Sent:
    """The answers that our client got."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.failed: list[str] = []


@contextmanager
def sending(live: LocalCluster, topic: str) -> Iterator[Sent]:
    """Our client sends until the block ends."""
    sent, over = Sent(), threading.Event()

    def load() -> None:
        with raftmq.connect(live.servers) as mq:
            while not over.wait(0.002):
                key = f"ours-{len(sent.keys) + len(sent.failed)}"
                try:
                    mq.send(topic, key.encode(), key=key)
                    sent.keys.append(key)
                except RaftMQError as error:
                    sent.failed.append(str(error))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def stored(mq: raftmq.Client, topic: str) -> Counter[str]:
    """Message key -> how often it is in the topic."""
    found: Counter[str] = Counter()
    for queue in range(QUEUES):
        at = 0
        while messages := (pulled := mq.pull(topic, queue, at)).messages:
            found.update(message.keys[0] for message in messages)
            at = pulled.next_offset
    return found


@pytest.mark.parametrize("grace_s", [0, 35])
def test_no_send_fails_while_every_node_restarts(
    live: LocalCluster, mq: raftmq.Client, start: Callable[..., Any], tell: Callable[[str], None], grace_s: int
) -> None:
    topic = f"rolling-{grace_s}"
    mq.admin.create_topic(topic, QUEUES)
    client = start("java", "produce", topic, "--group", topic, "--pace-ms", "2", "--prefix", "java")
    with sending(live, topic) as ours:
        client.wait("send", BEFORE)
        assert run(["rolling-restart", "--data", str(live.data), "--grace", str(grace_s)]) == 0
        count = len(client.lines("send"))
        client.wait("send", count + AFTER, PATIENCE_S)
    client.finish()
    lines = client.lines("send")
    refused = [line for line in lines if "error" in line]
    tell(f"grace {grace_s} s: {len(lines)} sends of Java, {len(refused)} failed; {len(ours.keys)} of ours")
    assert (refused, ours.failed) == ([], [])
    there = stored(mq, topic)
    assert [key for key in (*ours.keys, *(line["key"] for line in lines)) if key not in there] == []
