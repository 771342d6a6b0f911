"""What counts, keeps or finds messages goes by all queues that a topic has or had (`BrokerState.stored_queues`). Files
that go by the present ones (`TopicConfig.queues`) are named here, with the reason."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.support.tree import sources

ROOT = Path(__file__).resolve().parents[2]
PRESENT = re.compile(r"\b(?:topic|config|known|there|existing|before)\.queues\b")
BY_PRESENT_QUEUES = {
    "cluster/broker/groups/queue_locks.py": (1, "a queue that nobody reads is locked by nobody"),
    "cluster/remoting/handlers/broker_stats.py": (3, "202, as RocketMQ's tools show it"),
    "cluster/remoting/handlers/route.py": (1, "351 says how many more there are"),
    "cluster/replication/command_queue.py": (1, "the number of queues of the cluster is bounded"),
    "raftmq/copies/file_copy.py": (2, "a read of a copy covers what one of the cluster does; the other adds the rest"),
    "statemachine/removal_slices.py": (1, "ConsumeQueues.stored_queues adds the rest"),
    "statemachine/queue_view.py": (1, "the same"),
    "statemachine/topics/topics.py": (4, "locks and resets, and the number of queues of the cluster"),
}
"""File -> how often it goes by the present queues, and why."""


def by_present_queues(files: dict[str, str]) -> dict[str, int]:
    found = Counter({name: len(PRESENT.findall(text)) for name, text in files.items()})
    return {name: count for name, count in found.items() if count}


def test_only_these_go_by_the_present_queues() -> None:
    files = dict(sources("cluster", "statemachine", "raftmq"))
    assert by_present_queues(files) == {name: count for name, (count, _) in BY_PRESENT_QUEUES.items()}


def test_one_that_is_planted_is_found() -> None:
    assert by_present_queues({"a.py": "for queue_id in range(topic.queues):", "b.py": "topic.queues_max"}) == {
        "a.py": 1
    }
