"""Windows of what is hot, for a node of one of two groups of brokers."""

from __future__ import annotations

from typing import Any

from cluster.admin.findings.hot_watch import HotWatch
from cluster.replication.hot_spots import WINDOW_MS, Window
from cluster.runtime.figures.heavy_hitters import Heavy
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GROUPS_LEVEL
from statemachine.topics.topics import CreateTopic
from statemachine.truth import JournalNames
from tests.support.truth_kit import SECOND


class Watched:
    """A watch, and the windows that end one after the other."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.now_ms, self.cpu_s = 0, 0.0
        self.watch = HotWatch(node, lambda: self.cpu_s)
        self.ends(Window(0, 0, [], []), 0.0)

    def ends(self, window: Window, busy: float) -> list[tuple[str, str, str]]:
        """Returns (code, object, command) after a window in which the process used so much of a core."""
        self.now_ms += WINDOW_MS
        self.cpu_s += busy * WINDOW_MS / 1000
        self.node.window = window._replace()
        return [(each.code, each.object, each.do_now) for each in self.watch.look(self.now_ms)]


def watched_in_two_groups(node: Any) -> Watched:
    """The watch of a node in a cluster of two groups, with a topic `here` in the first and a topic `both` in both."""
    node.apply([Finalize(GROUPS_LEVEL)])
    node.apply([SECOND])
    while not node.state.truth_journal.is_ready:
        node.apply([JournalNames(100)])
    here, both = [[1, 2, 2]], [[1, 2, 2], [2, 2, 2]]
    for name, place in (("here", here), ("both", both)):
        node.apply([CreateTopic({"name": name, "place": place}, True)])
    return Watched(node)


def window(node: Any, **messages: int) -> Window:
    """A window in which queue 0 of each topic got so many of 1,000 messages."""
    rows = [Heavy((node.state.topics[name].id, 0), count, 0) for name, count in messages.items()]
    return Window(WINDOW_MS, 1_000, sorted(rows, key=lambda each: -each.times), [])
