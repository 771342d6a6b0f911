"""Topics that take messages in fewer groups of brokers: read out and gone, and gathered by themselves when they are
calm (docs/adr/0114)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.broker.gathering import AGAIN_MS, SETTLE_MS, STEPS_PER_TICK, Gathering, busy_if_gathered
from cluster.broker.topics import SPREAD_HOME
from cluster.replication.drain_grace import GRACE_MS, DrainGrace
from cluster.replication.hot_spots import Window
from cluster.replication.outcome import Outcome
from statemachine.cluster_wide.broker_groups import DrainBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.levels import GATHERS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.cluster.admin.conftest import FakeNode
from tests.cluster.admin.test_drains_http import SecondGroup
from tests.statemachine.conftest import LogBuilder
from tests.support.hot_windows import two_groups, window

AFTER_MS = 60_000
READ_OUT = {1: (2, 2), 2: (2, 0)}


class Gathers:
    """What a leader does about topics that are in fewer groups, on a clock of its own."""

    def __init__(self, node: Any, spread: str = "off") -> None:
        self.node = node
        self.now_ms = 1_000_000
        self.decides = True
        """False if the first group is away."""
        self.leads = True
        self.asked: list[CreateTopic] = []
        topics = msgspec.structs.replace(node.config.topics, spread=spread, gather_after_ms=AFTER_MS)
        self.services = SimpleNamespace(
            config=msgspec.structs.replace(node.config, topics=topics),
            state=node.state,
            writes_open=lambda: self.leads and node.writes_open(),
            propose=self._propose,
        )
        self.notes: list[str] = []
        events: Any = SimpleNamespace(note_change=lambda about, says: self.notes.append(f"{about}: {says}"))
        self.drain = DrainGrace(node.state)
        refuses = SimpleNamespace(refuse_topics=self.drain.refuse_topics)
        services: Any = self.services
        proposals: Any = refuses
        self.events = events
        self.gathering = Gathering(services, proposals, lambda: node.window, events)

    def _propose(self, commands: list[Command], done: Callable[[Any], None], author: str) -> None:
        self.asked += [command for command in commands if isinstance(command, CreateTopic)]
        if not self.decides:
            done(SimpleNamespace(outcome=Outcome.UNKNOWN, results=[]))
            return
        results = self.node.apply(commands)
        done(SimpleNamespace(outcome=Outcome.OK, results=results))

    def runs(self, ms: int) -> list[CreateTopic]:
        """Lets so much time pass; returns what was asked meanwhile."""
        before, step = len(self.asked), 500
        for _ in range(ms // step):
            self.now_ms += step
            self.gathering.tick(self.now_ms)
        return self.asked[before:]

    @property
    def place(self) -> dict[int, tuple[int, int]]:
        """The queues of the topic `both` in each group."""
        return dict(self.node.state.topics["both"].queues_of_groups)


# -- a group in which a topic is only read


@pytest.fixture
def second() -> SecondGroup:
    """Node 1 of group 2, in which the topic `both` has messages that a group has yet to read."""
    node = SecondGroup(LogBuilder, GATHERS_LEVEL)
    node.apply([CreateTopic({"name": "both", "place": [[1, 2, 2], [2, 2, 2]]}, False)])
    FakeNode.add_messages(node, "both", 1, 10)
    subscribe(node, "billing")
    return node


def subscribe(node: SecondGroup, group: str) -> None:
    node.apply([PutGroup({"name": group}, False)])
    FakeNode.apply(node, [Subscribe(group, [("both", "TAG", "*", 1)])])


def commit(node: SecondGroup, offset: int) -> None:
    FakeNode.apply(node, [CommitOffsets([("billing", node.state.topics["both"].id, 1, offset)])])


def read_out(node: SecondGroup) -> None:
    node.apply([CreateTopic({"name": "both", "place": [[2, 2, 0]]}, False)])


def test_it_leaves_when_clients_know_and_everybody_has_read(second: SecondGroup) -> None:
    gathers = Gathers(second)
    assert gathers.runs(GRACE_MS + 2 * SETTLE_MS) == [], "it takes messages"
    read_out(second)
    commit(second, 9)
    assert gathers.runs(GRACE_MS - 1_000) == []
    assert gathers.drain.takes("both"), "clients with a route of before"
    assert gathers.runs(2_000) == []
    assert not gathers.drain.takes("both")
    assert "both takes no new messages in group 2" in gathers.drain.remark("both")
    assert (gathers.runs(10 * GRACE_MS), gathers.place) == ([], READ_OUT), "a message is unread"
    commit(second, 10)
    assert len(gathers.runs(1_000)) == 1
    assert gathers.place == {1: (2, 2)}
    assert gathers.notes == ["topic both: was read out, and has no queues here any more"]
    assert gathers.runs(GRACE_MS) == []


def test_a_group_that_is_offline_holds_it(second: SecondGroup) -> None:
    subscribe(second, "monthly")
    gathers = Gathers(second)
    read_out(second)
    commit(second, 10)
    assert gathers.runs(100 * GRACE_MS) == []


def test_messages_that_nobody_reads_hold_it(second: SecondGroup) -> None:
    second.apply([CreateTopic({"name": "alone", "place": [[1, 1, 1], [2, 1, 1]]}, False)])
    FakeNode.add_messages(second, "alone", 0, 3)
    second.apply([CreateTopic({"name": "alone", "place": [[2, 1, 0]]}, False)])
    assert Gathers(second).runs(10 * GRACE_MS) == []


def test_hot_again_before_it_has_left(second: SecondGroup) -> None:
    gathers = Gathers(second)
    read_out(second)
    commit(second, 10)
    gathers.runs(GRACE_MS + 1_000)
    assert not gathers.drain.takes("both")
    second.apply([CreateTopic({"name": "both", "place": [[2, 2, 2]]}, False)])
    assert gathers.drain.takes("both"), "at once"
    assert gathers.runs(2 * GRACE_MS) == []
    read_out(second)
    assert gathers.runs(GRACE_MS) == [], "the time counts anew"
    assert gathers.runs(2 * SETTLE_MS)


def test_read_out_again_between_two_looks(second: SecondGroup) -> None:
    gathers = Gathers(second)
    read_out(second)
    commit(second, 10)
    gathers.runs(GRACE_MS)
    second.first.log.now_ms += 5_000
    second.apply([CreateTopic({"name": "both", "place": [[2, 2, 2]]}, False)])
    read_out(second)
    assert (gathers.runs(GRACE_MS), gathers.place) == ([], READ_OUT)


def test_the_next_leader_waits_for_clients_anew(second: SecondGroup) -> None:
    gathers = Gathers(second)
    read_out(second)
    commit(second, 10)
    gathers.runs(GRACE_MS)
    gathers.leads = False
    gathers.runs(1_000)
    gathers.leads = True
    assert gathers.runs(GRACE_MS) == []
    assert gathers.runs(2 * SETTLE_MS)


def test_what_is_not_decided_is_asked_again_later(second: SecondGroup) -> None:
    gathers = Gathers(second)
    gathers.decides = False
    read_out(second)
    commit(second, 10)
    asked = gathers.runs(GRACE_MS + SETTLE_MS + 3 * AGAIN_MS)
    assert 2 <= len(asked) <= 4
    assert (gathers.place, gathers.notes) == (READ_OUT, [])


def test_a_message_that_comes_after_it_has_left_is_read_too(second: SecondGroup) -> None:
    """A delayed one, which is stored though the topic has no queues here."""
    gathers = Gathers(second)
    read_out(second)
    commit(second, 10)
    gathers.runs(GRACE_MS + 2 * SETTLE_MS)
    assert gathers.place == {1: (2, 2)}
    FakeNode.add_messages(second, "both", 1, 1)
    gathers.runs(1_000)
    assert gathers.place == READ_OUT
    assert gathers.notes[-1] == "topic both: has messages here again, and is read out once more"
    assert gathers.runs(10 * GRACE_MS) == []
    commit(second, 11)
    gathers.runs(1_000)
    assert gathers.place == {1: (2, 2)}


def test_below_the_level_it_does_nothing() -> None:
    node = SecondGroup(LogBuilder, GATHERS_LEVEL - 1)
    node.apply([CreateTopic({"name": "both", "place": [[1, 2, 2]]}, False)])
    FakeNode.add_messages(node, "both", 1, 1)
    assert Gathers(node).runs(2 * GRACE_MS) == []


# -- the group in which a topic was before it was hot


@pytest.fixture
def home(node: Any) -> Any:
    """Node 1 of group 1; the topic `both` was spread to group 2 by itself."""
    two_groups(node)
    node.apply([Finalize(GATHERS_LEVEL)])
    node.apply([CreateTopic({"name": "both", "attributes": {SPREAD_HOME: "1", "dedup": "strict"}}, False)])
    return node


def test_a_topic_that_stays_calm_is_gathered_where_it_was(home: Any) -> None:
    gathers = Gathers(home, "auto")
    home.window = window(home, both=800)
    assert gathers.runs(3 * AFTER_MS) == []
    home.window = window(home, 0.2, both=300)
    assert gathers.runs(AFTER_MS - 1_000) == []
    assert len(gathers.runs(2_000)) == 1
    assert gathers.place == READ_OUT
    assert home.state.topics["both"].attributes == {"dedup": "strict"}
    assert gathers.notes == [
        "topic both: the topic is calm and takes messages in group 1 alone (topics.spread is auto)"
    ]
    assert gathers.runs(3 * AFTER_MS) == []


def test_a_hot_key_that_stops_as_soon_as_queues_are_there(home: Any) -> None:
    """Nothing is sent any more: windows without messages are calm too."""
    gathers = Gathers(home, "auto")
    home.window = Window(0, 0.0, 0, [], [])
    assert gathers.runs(AFTER_MS - 1_000) == []
    assert len(gathers.runs(2_000)) == 1


def test_a_burst_in_between_begins_the_time_anew(home: Any) -> None:
    gathers = Gathers(home, "auto")
    for _ in range(4):
        home.window = window(home, 0.1, both=100)
        assert gathers.runs(AFTER_MS - 1_000) == []
        home.window = window(home, both=800)
        assert gathers.runs(1_000) == []


@pytest.mark.parametrize(
    "why", ["off", "by a person", "order", "not the first of its home", "follower", "drains", "is there alone"]
)
def test_it_stays_where_it_is(home: Any, why: str) -> None:
    home.window = Window(0, 0.0, 0, [], [])
    if why == "by a person":
        home.apply([CreateTopic({"name": "both", "attributes": {}}, False)])
    elif why == "order":
        home.apply([CreateTopic({"name": "both", "order": True}, False)])
    elif why == "not the first of its home":
        home.apply([CreateTopic({"name": "both", "attributes": {SPREAD_HOME: "2"}}, False)])
    elif why == "follower":
        home.writes_open = lambda: False
    elif why == "drains":  # group 2 is its home, and takes nothing
        home.apply([CreateTopic({"name": "both", "attributes": {SPREAD_HOME: "2"}}, False)])
        home.apply([DrainBrokerGroup(2, draining=True)])
    elif why == "is there alone":
        home.apply([CreateTopic({"name": "both", "place": [[2, 2, 0]]}, False)])
    assert Gathers(home, "off" if why == "off" else "auto").runs(3 * AFTER_MS) == []


def test_a_tick_looks_at_a_bounded_number_of_topics(home: Any) -> None:
    for number in range(3 * STEPS_PER_TICK):
        config = {"name": f"spread-{number}", "place": [[1, 1, 1], [2, 1, 1]], "attributes": {SPREAD_HOME: "1"}}
        home.apply([CreateTopic(config, False)])
    gathers, looks = Gathers(home, "auto"), [0]

    def hot() -> Window:
        looks[-1] += 1
        return Window(0, 0.0, 0, [], [])

    services: Any = gathers.services
    refuses: Any = SimpleNamespace(refuse_topics=gathers.drain.refuse_topics)
    gathers.gathering = Gathering(services, refuses, hot, gathers.events)
    for _ in range(8):
        looks.append(0)
        gathers.runs(500)
    assert STEPS_PER_TICK / 2 < max(looks) <= STEPS_PER_TICK


def test_how_busy_a_leader_would_be(home: Any) -> None:
    topic = home.state.topics["both"]
    half = window(home, 0.4, both=500)
    assert busy_if_gathered(topic, {1}, half) == pytest.approx(0.6), "0.2 for the rest, 0.2 for the topic's half"
    assert busy_if_gathered(topic, {1, 2}, half) == pytest.approx(0.4)
    assert busy_if_gathered(topic, {1}, Window(0, 0.0, 0, [], [])) == 0
