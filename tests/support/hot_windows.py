"""Windows of what is hot, for a node of one of two groups of brokers."""

from __future__ import annotations

from typing import Any

from cluster.replication.hot_spots import WINDOW_MS, Window
from cluster.runtime.figures.heavy_hitters import Heavy
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic
from statemachine.truth import JournalNames
from tests.support.truth_kit import SECOND


def two_groups(node: Any) -> None:
    """Puts a node into a cluster of two groups, with a topic `here` in the first and a topic `both` in both."""
    node.apply([Finalize(GROUPS_LEVEL)])
    node.apply([SECOND])
    while not node.state.truth_journal.is_ready:
        node.apply([JournalNames(100)])
    here, both = [[1, 2, 2]], [[1, 2, 2], [2, 2, 2]]
    for name, place in (("here", here), ("both", both)):
        node.apply([CreateTopic({"name": name, "place": place}, True)])


def window(node: Any, busy: float = 0.9, **messages: int) -> Window:
    """A window in which queue 0 of each topic got so many of 1,000 messages."""
    rows = [Heavy((node.state.topics[name].id, 0), count, 0) for name, count in messages.items()]
    return Window(WINDOW_MS, busy, 1_000, sorted(rows, key=lambda each: -each.times), [])
