"""What keeps a busy leader busy: a topic that could spread, a queue that no further one helps, and nothing else; and
topics that spread by themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.broker.hot_topics import Spreading
from cluster.broker.watches.hot_watch import HOLD_MS, hot_conditions
from cluster.replication.hot_spots import WINDOW_MS, Window
from cluster.replication.outcome import Outcome
from cluster.runtime.figures.heavy_hitters import Heavy
from statemachine.cluster_wide.broker_groups import DrainBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GATHERS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.support.hot_windows import two_groups, window


@pytest.fixture(autouse=True)
def groups(node: Any) -> None:
    two_groups(node)


def found(node: Any, ended: Window) -> list[tuple[str, str, str]]:
    """(code, object, command) after this window."""
    node.window = ended
    return [(each.code, each.object, each.do_now) for each in hot_conditions(node, node.window)]


def test_a_hot_topic_that_could_have_queues_elsewhere(node: Any) -> None:
    assert found(node, window(node, here=800, both=200)) == [("hot_topic", "topic here", "raftmq topic spread here")]
    (condition,) = hot_conditions(node, node.window)
    assert condition.says == (
        "topic here gets 80% of the 200 messages/s of group 1, whose leader is busy 90% of the time; it has no "
        "queues in group 2"
    )
    assert condition.hold_ms == HOLD_MS > WINDOW_MS
    assert found(node, window(node, here=400, both=300)) == []


def test_no_topic_is_to_spread_to_a_group_that_drains(node: Any) -> None:
    node.apply([DrainBrokerGroup(2, draining=True)])
    assert "hot_topic" not in [code for code, *_ in found(node, window(node, here=800, both=200))]


def test_a_hot_queue_of_a_topic_that_is_everywhere(node: Any) -> None:
    assert found(node, window(node, here=100, both=800)) == [("hot_queue", "queue both/0", "")]
    two = window(node, both=400)
    both = node.state.topics["both"].id
    assert found(node, two._replace(queues=[Heavy((both, 0), 400, 0), Heavy((both, 1), 400, 0)])) == []


@pytest.mark.parametrize("why", ["idle", "follower", "empty", "one group", "gone"])
def test_nothing_is_found_where_nothing_is_to_be_done(node: Any, why: str) -> None:
    hot = window(node, here=800)
    if why == "idle":
        hot = hot._replace(busy=0.3)
    elif why == "follower":
        node.writes_open = lambda: False
    elif why == "empty":
        hot = Window(0, 0.0, 0, [], [])
    elif why == "one group":
        node.state.broker_groups.by_number = {}
    elif why == "gone":
        hot = hot._replace(queues=[Heavy((99, 0), 800, 0)])
    assert found(node, hot) == []


class Spread:
    """What asks for a topic's queues in further groups, window after window."""

    def __init__(self, node: Any, how: str = "auto") -> None:
        self.node = node
        self.asked: list[tuple[CreateTopic, Callable[[Any], None]]] = []
        config = msgspec.structs.replace(node.config, topics=msgspec.structs.replace(node.config.topics, spread=how))
        services = SimpleNamespace(
            config=config,
            state=node.state,
            writes_open=lambda: node.writes_open(),
            propose=lambda commands, done, author: self.asked.append((*commands, done)),
        )
        self.notes: list[tuple[str, str]] = []
        events = SimpleNamespace(note_change=lambda about, says: self.notes.append((about, says)))
        self.spreading = Spreading(services, lambda: node.window, events)  # type: ignore[arg-type]

    def ends(self, ended: Window) -> int:
        """Ends a window, and looks at it twice; returns how often something was asked so far."""
        self.node.window = ended._replace()
        self.spreading.tick(0)
        self.spreading.tick(1)
        return len(self.asked)


def test_a_topic_that_spreads_where_it_is_being_read_out_hides_no_queue_there(node: Any) -> None:
    node.apply([Finalize(GATHERS_LEVEL), CreateTopic({"name": "here", "place": [[2, 5, 0]]}, False)])
    spread, hot = Spread(node), window(node, here=800)
    assert [spread.ends(hot) for _ in range(2)] == [0, 1]
    node.apply([spread.asked[0][0]])
    assert node.state.topics["here"].queues_of_groups == {1: (2, 2), 2: (5, 2)}


def test_a_topic_that_stays_hot_is_given_queues_everywhere_once(node: Any) -> None:
    spread, hot = Spread(node), window(node, here=800)
    assert [spread.ends(hot) for _ in range(4)] == [0, 1, 1, 1], "one window is a burst; asked once at a time"
    command, done = spread.asked[0]
    node.apply([command])
    assert node.state.topics["here"].queues_of_groups == {1: (2, 2), 2: (2, 2)}
    assert node.state.topics["here"].attributes == {"spread.home": "1"}, "where it comes back to"
    done(SimpleNamespace(outcome=Outcome.OK))
    assert spread.notes == [("topic here", "the topic was hot and has queues in group 2 now (topics.spread is auto)")]
    assert spread.ends(hot) == spread.ends(hot) == 1, "it has queues in all groups"


def test_a_topic_that_is_hot_while_it_is_read_out_is_spread_again(node: Any) -> None:
    node.apply([Finalize(GATHERS_LEVEL)])
    node.apply([CreateTopic({"name": "both", "place": [[2, 2, 0]]}, False)])
    assert found(node, window(node, both=800)) == [("hot_topic", "topic both", "raftmq topic spread both")]
    spread, hot = Spread(node), window(node, both=800)
    assert [spread.ends(hot) for _ in range(2)] == [0, 1]
    node.apply([spread.asked[0][0]])
    assert node.state.topics["both"].written_groups == {1, 2}


def test_what_was_not_decided_is_asked_again(node: Any) -> None:
    spread, hot = Spread(node), window(node, here=800)
    assert [spread.ends(hot) for _ in range(2)] == [0, 1]
    spread.asked[0][1](SimpleNamespace(outcome=Outcome.UNKNOWN))
    assert (spread.ends(hot), spread.notes) == (2, [])


@pytest.mark.parametrize("why", ["off", "order", "follower", "burst"])
def test_it_stays_where_it_is(node: Any, why: str) -> None:
    if why == "order":
        node.apply([CreateTopic({"name": "here", "order": True}, False)])
    elif why == "follower":
        node.writes_open = lambda: False
    spread = Spread(node, "off" if why == "off" else "auto")
    for _ in range(4):
        assert spread.ends(window(node, here=800)) == 0
        if why == "burst":
            assert spread.ends(window(node, here=100)) == 0
