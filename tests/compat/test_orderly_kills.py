"""Orderly consumers, Java of both lines and Go, while leaders are killed and come back: none loses its queues for long.

What is measured is how long a message waits for its consumer; it is compared by hand with another version's figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.compat.kills import killed
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(900)]

Start = Callable[..., Any]
QUEUES, KILLS = 4, 10
PATIENCE_S = at_most(120)


class Story:
    """Sends numbered messages to a topic, and knows when."""

    def __init__(self, mq: raftmq.Client, topic: str) -> None:
        self._mq, self._topic = mq, topic
        self.sent: dict[str, float] = {}
        self._number = 0

    def send_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for queue in range(QUEUES):
                key = f"{queue}-{self._number}"
                self._mq.send(self._topic, b"x", key=key, queue_id=queue)
                self.sent[key] = time.time()
            self._number += 1
            time.sleep(0.2)

    def wait_for(self, readers: list[Any]) -> dict[str, float]:
        """Returns the time when each message came first, once all have."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            came: dict[str, float] = {}
            for line in sorted((line for one in readers for line in one.lines("message")), key=lambda line: line["at"]):
                came.setdefault(line["key"], line["at"])
            if came.keys() >= self.sent.keys():
                return came
            assert time.monotonic() < deadline, f"{len(came)} of {len(self.sent)} messages"
            time.sleep(0.5)


def check_order(came: dict[str, float]) -> None:
    """No message came before the one before it in its queue."""
    last: dict[str, int] = {}
    for key in sorted(came, key=lambda key: came[key]):
        queue, number = key.split("-")
        assert int(number) == last.get(queue, -1) + 1, f"queue {queue}: {number} right after {last.get(queue, -1)}"
        last[queue] = int(number)


@pytest.mark.parametrize("kinds", [("java-oldest", "java-newest"), ("go",)], ids=["java", "go"])
def test_orderly_consumers_keep_their_queues_while_leaders_are_killed(
    live: LocalCluster, mq: raftmq.Client, start: Start, tell: Callable[[str], None], kinds: tuple[str, ...]
) -> None:
    topic = f"orderly-kills-{kinds[0]}"
    mq.admin.create_topic(topic, QUEUES)
    readers = {kind: [start(kind, "consume", topic, "--group", f"{kind}-kills", "--orderly")] for kind in kinds}
    for (one,) in readers.values():
        one.wait("ready")
    story = Story(mq, topic)
    story.send_for(5)
    for kill in range(KILLS):
        if kill in (2, 5):  # the queues are divided anew right after a leader came back
            for kind in kinds:
                readers[kind].append(start(kind, "consume", topic, "--group", f"{kind}-kills", "--orderly"))
        if kill == 7:
            for kind in kinds:
                readers[kind][1].finish()
        with killed(live, live.wait_leader()):
            story.send_for(3)
        story.send_for(4)
    for kind in kinds:
        came = story.wait_for(readers[kind])
        waits = sorted(came[key] - at for key, at in story.sent.items())
        most = waits[len(waits) * 99 // 100]
        tell(f"{kind}: {len(waits)} messages; waited at most {waits[-1]:.1f} s, 99 of 100 at most {most:.1f} s")
        check_order(came)
