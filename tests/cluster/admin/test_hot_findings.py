"""What keeps a busy leader busy: a topic that could spread, a queue that no further one helps, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.admin.findings.hot_watch import HotWatch
from cluster.replication.hot_spots import WINDOW_MS, Window
from cluster.runtime.figures.heavy_hitters import Heavy
from tests.support.hot_windows import Watched, watched_in_two_groups, window


@pytest.fixture
def watched(node: Any) -> Watched:
    return watched_in_two_groups(node)


SPREAD = ("hot_topic", "topic here", "raftmq topic spread here")


def test_a_hot_topic_that_could_have_queues_elsewhere(watched: Watched, node: Any) -> None:
    assert watched.ends(window(node, here=800, both=200), 0.9) == [SPREAD]
    (condition,) = watched.watch.look(watched.now_ms)
    assert condition.says == (
        "topic here gets 80% of the 100 messages/s of group 1, whose leader uses 90% of a core; it has no queues in "
        "group 2"
    )
    assert condition.hold_ms > WINDOW_MS
    assert watched.ends(window(node, here=400, both=300), 0.9) == []


def test_a_hot_queue_of_a_topic_that_is_everywhere(watched: Watched, node: Any) -> None:
    assert watched.ends(window(node, here=100, both=800), 0.9) == [("hot_queue", "queue both/0", "")]


@pytest.mark.parametrize("why", ["idle", "follower", "empty", "one group", "gone"])
def test_nothing_is_found_where_nothing_is_to_be_done(watched: Watched, node: Any, why: str) -> None:
    hot = window(node, here=800)
    if why == "follower":
        node.writes_open = lambda: False
    elif why == "empty":
        hot = Window(0, 0, [], [])
    elif why == "one group":
        node.state.broker_groups.by_number = {}
    elif why == "gone":
        hot = hot._replace(queues=[Heavy((99, 0), 800, 0)])
    assert watched.ends(hot, 0.3 if why == "idle" else 0.9) == []


def test_the_first_window_says_nothing_of_how_busy_it_was(node: Any) -> None:
    node.window = Window(0, 0, [], [])
    watch = HotWatch(node, lambda: 1e6)
    node.window = window(node)
    assert list(watch.look(5)) == []
