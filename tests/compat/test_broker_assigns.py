"""Java consumers that ask the broker for their queues, as POP consumers do: they are told to pull, and share them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

QUEUES, MESSAGES = 4, 200


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_two_consumers_that_ask_for_their_queues(mq: raftmq.Client, start: Callable[..., Any], kind: str) -> None:
    topic = f"{kind}-assigned"
    mq.admin.create_topic(topic, QUEUES)
    readers = [start(kind, "consume", topic, "--group", f"{topic}-readers", "--broker-assigns") for _ in range(2)]
    for reader in readers:
        reader.wait("ready")
    time.sleep(25)  # they ask anew every 20 s
    with mq.producer() as producer:
        for number in range(MESSAGES):
            producer.send_soon(topic, b"m", key=f"k{number}", tag="t", properties={"shade": "s"})
    for reader in readers:
        reader.wait("message", MESSAGES // QUEUES, 60.0)
    time.sleep(2)
    lines = [reader.lines("message") for reader in readers]
    for reader in readers:
        reader.finish()
    assert sorted(line["key"] for each in lines for line in each) == sorted(f"k{n}" for n in range(MESSAGES))
    assert [len({line["queue_id"] for line in each}) for each in lines] == [2, 2]
