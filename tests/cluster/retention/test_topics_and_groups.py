"""Topics with a time of their own, and groups that are behind: over a real state, no node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from cluster.config.storage_sections import RetentionSection
from cluster.retention import unconsumed_messages
from cluster.retention.policy import LEAST_OFFSETS, STEP_OFFSETS, Floor, KeptLonger, QueuePlace, gone_earlier
from cluster.retention.unconsumed_messages import Behind
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, EntryType
from raftlog.work import METER
from statemachine import commands, payload
from statemachine.broker_state import BrokerState
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic, TopicConfig
from tests.support.rows import each_row

HOUR = 3_600_000


class Leader:
    """Topics a, b and c with one queue, and a message where and when a test wants one."""

    def __init__(self, **retention: str) -> None:
        self.state = BrokerState(MemoryKV())
        self.tail = EMPTY_TAIL
        self._add(EntryType.GENESIS, b"", 0)
        configs: list[dict[str, Any]] = [
            {
                "name": name,
                "read_queues": 1,
                "write_queues": 1,
                "attributes": {"retention.ms": retention[name]} if name in retention else {},
            }
            for name in sorted({"a", "b", "c", *retention})
        ]
        made = self.run(*[CreateTopic(config, False) for config in configs])
        self.ids = {topic.name: topic.id for topic in self.state.topics.values()}
        assert all(result.ok for result in made), made

    def run(self, *commanded: commands.Command) -> Sequence[commands.CommandResult]:
        return self._add(EntryType.COMMAND, commands.pack(list(commanded)), self.tail.timestamp_ms)

    def store(self, topic: str, now_ms: int, count: int = 1, queue_id: int = 0) -> int:
        """`count` messages; returns the position of the first."""
        topic_id = self.ids[topic]
        at = self.tail.end_position + payload.MESSAGES_AT
        items = b"".join(payload.ITEM.pack(at + n, 1, 0, 0, now_ms) for n in range(count))
        run = payload.Run(topic_id, queue_id, self.state.max_offset(topic_id, queue_id), count, 0, items)
        self._add(EntryType.MESSAGES, payload.encode([b"m" * count], count, [run]), now_ms)
        return at

    def commit(self, group: str, topic: str, offset: int) -> None:
        self.run(PutGroup({"name": group}, True), CommitOffsets([(group, self.ids[topic], 0, offset)]))

    def _add(self, kind: int, data: bytes, now_ms: int) -> Sequence[commands.CommandResult]:
        entry = make_entry(
            self.tail, term=1, entry_type=kind, payload=data, timestamp_ms=now_ms, group_id=1, segment_size=1 << 26
        )
        self.tail = tail_after(self.tail, entry)
        return self.state.apply([entry]).results[0]


@each_row("text", ["", "x", "-1", "1.5", "٣", "9" * 16])
def test_a_topic_keeps_messages_for_a_whole_number_of_milliseconds(text: str) -> None:
    leader = Leader()
    (result,) = leader.run(CreateTopic({"name": "d", "attributes": {"retention.ms": text}}, False))
    assert (result.ok, result.code) == (False, "invalid")
    assert "whole number of milliseconds" in result.value
    assert TopicConfig(9, "old", attributes={"retention.ms": text}).retention_ms is None, "of a row from before"


EVERYWHERE = 1 << 40


def test_what_a_topic_keeps_longer_holds_the_log_from_its_first_young_message_on() -> None:
    leader = Leader(a=str(100 * HOUR), b="0", c=str(HOUR))

    def kept(keep_ms: int, now_ms: int, end: int = EVERYWHERE) -> Floor | None:
        return KeptLonger(leader.state).floor(keep_ms, now_ms, 0, end)

    leader.store("c", 1 * HOUR)
    assert kept(72 * HOUR, 1 * HOUR) is None, "no messages, or a shorter time"
    old = leader.store("a", 10 * HOUR)
    young = leader.store("a", 50 * HOUR)
    assert kept(72 * HOUR, 109 * HOUR) == Floor(old, "topic a (retention.ms 360000000)")
    assert kept(72 * HOUR, 109 * HOUR, old) is None, "nothing from there on would go"
    assert kept(72 * HOUR, 110 * HOUR) == Floor(young, "topic a (retention.ms 360000000)")
    assert kept(72 * HOUR, 110 * HOUR, young) is None
    assert kept(72 * HOUR, 150 * HOUR) is None
    assert kept(200 * HOUR, 109 * HOUR) is None, "the others are kept longer still"
    assert kept(0, 109 * HOUR) is None, "everything is kept for ever"
    for_ever = leader.store("b", 50 * HOUR)
    assert kept(72 * HOUR, 9999 * HOUR) == Floor(for_ever, "topic b (retention.ms 0)")


def test_queues_that_a_topic_has_no_more_are_kept_as_long_as_its_others() -> None:
    leader = Leader(a=str(100 * HOUR), c=str(HOUR))
    for queues in (2, 1):
        sizes = {"read_queues": queues, "write_queues": queues}
        assert all(each.ok for each in leader.run(*[CreateTopic({"name": name, **sizes}, False) for name in "ac"]))
        if queues == 2:
            leader.store("c", 1 * HOUR, queue_id=1)
            held = leader.store("a", 10 * HOUR, queue_id=1)
    assert KeptLonger(leader.state).floor(72 * HOUR, 109 * HOUR, 0, EVERYWHERE) == Floor(
        held, "topic a (retention.ms 360000000)"
    )
    assert gone_earlier(leader.state, 72 * HOUR, 9 * HOUR).queues == [(leader.ids["c"], 1, 1)]


def test_while_a_topic_holds_the_first_segment_no_other_topic_is_asked() -> None:
    leader = Leader(**{f"t{number:03}": "0" for number in range(200)})
    names = sorted(leader.ids, reverse=True)
    positions = [leader.store(name, HOUR) for name in names]
    first_end = positions[2]
    longer = KeptLonger(leader.state)

    def look() -> int:
        """Units of one that finds something."""
        before = METER.units
        assert longer.floor(HOUR, 9 * HOUR, first_end, EVERYWHERE) is not None
        return METER.units - before

    assert look() > 20 * look()
    leader.run(DeleteTopic(names[1]))
    assert look() > 20 * look(), "another one is remembered"


def test_what_a_topic_keeps_shorter_goes_when_it_is_worth_an_entry() -> None:
    leader = Leader(a=str(HOUR), b=str(100 * HOUR))
    topic = leader.ids["a"]
    leader.store("a", 1 * HOUR, LEAST_OFFSETS - 1)
    leader.store("a", 2 * HOUR, 5)
    leader.store("b", 2 * HOUR, 5)
    assert gone_earlier(leader.state, 72 * HOUR, 2 * HOUR - 1).queues == []
    assert gone_earlier(leader.state, 72 * HOUR, 2 * HOUR).queues == [], "a few are left for later"
    assert gone_earlier(leader.state, 72 * HOUR, 3 * HOUR).queues == [(topic, 0, LEAST_OFFSETS + 4)], "unless it is all"
    leader.store("a", 3 * HOUR, STEP_OFFSETS)
    assert gone_earlier(leader.state, 0, 3 * HOUR).queues == [(topic, 0, LEAST_OFFSETS + 4)]
    assert gone_earlier(leader.state, 72 * HOUR, 4 * HOUR).queues == [(topic, 0, STEP_OFFSETS)], (
        "the rest with the next one"
    )


def test_a_look_names_so_many_queues_and_the_next_one_the_others() -> None:
    """A TRIM with all queues of a hundred thousand topics would be an entry without a bound."""
    leader = Leader(**dict.fromkeys("abcde", str(HOUR)), f="0")
    many = {"name": "d", "read_queues": 7, "write_queues": 7, "attributes": {"retention.ms": str(HOUR)}}
    leader.run(CreateTopic(many, False))
    for name in "abcdef":
        leader.store(name, 1 * HOUR)
    found: list[int] = []
    at, looks = None, 0
    while looks == 0 or at is not None:
        seen = gone_earlier(leader.state, 72 * HOUR, 3 * HOUR, at, looks_max=2, page_topics=2)
        found += [topic for topic, _, _ in seen.queues]
        at, looks = seen.at, looks + 1
        assert looks <= 6, "eleven queues, two for each look"
    assert found == [leader.ids[name] for name in "abcde"]
    leader.run(DeleteTopic("c"))
    rest = gone_earlier(leader.state, 72 * HOUR, 3 * HOUR, QueuePlace("c", 1), looks_max=2, page_topics=2)
    assert rest == ([(leader.ids["d"], 0, 1)], QueuePlace("d", 2)), "the topic of the place is gone"


def test_groups_that_are_behind() -> None:
    leader = Leader()
    leader.store("a", 1 * HOUR, 4)
    at = leader.store("a", 2 * HOUR, 4)
    leader.store("b", 3 * HOUR, 2)
    for group, topic, offset in (("slow", "a", 4), ("done", "a", 8), ("slow", "b", 2), ("off", "a", 99)):
        leader.commit(group, topic, offset)
    leader.run(PutGroup({"name": "silent"}, True))
    rows = unconsumed_messages.behind(leader.state)
    assert rows == [Behind("slow", "a", leader.ids["a"], 0, 4, 8, at, 2 * HOUR)]
    assert unconsumed_messages.floor(rows) == Floor(at, "group slow has not consumed a queue 0 offset 4")
    assert unconsumed_messages.floor([]) is None


def test_what_goes_unread_is_counted() -> None:
    leader = Leader()
    positions = [leader.store("a", HOUR * n, 1) for n in range(6)]
    leader.commit("g", "a", 2)
    rows = unconsumed_messages.behind(leader.state)
    counts = [sum(unconsumed_messages.lost(leader.state, rows, position).values()) for position in positions]
    assert counts == [0, 0, 0, 1, 2, 3]
    assert unconsumed_messages.lost(leader.state, rows, leader.tail.end_position) == {("g", "a"): 4}
    named = [(leader.ids["a"], 0, 5)]
    assert unconsumed_messages.lost(leader.state, rows, 0, named) == {("g", "a"): 3}
    assert unconsumed_messages.lost(leader.state, rows, leader.tail.end_position, named) == {("g", "a"): 4}
    assert unconsumed_messages.within([*named, (9, 9, 9)], rows) == [(leader.ids["a"], 0, 2), (9, 9, 9)]


def test_the_alarm_comes_before_the_loss() -> None:
    leader = Leader()
    leader.store("a", 10 * HOUR, 3)
    leader.commit("g", "a", 1)
    rows, rules = unconsumed_messages.behind(leader.state), RetentionSection(hours=10)
    end = leader.tail.end_position

    def text(now_ms: int, **other: Any) -> str:
        return unconsumed_messages.warning(rows, replace(rules, **other), now_ms, end)

    assert text(18 * HOUR - 1) == ""
    assert text(18 * HOUR).startswith("group g is 2 messages of topic a behind, and retention will soon remove")
    assert "raftmq group describe g" in text(18 * HOUR)
    assert text(99 * HOUR, protect_unconsumed=True) == text(99 * HOUR, hours=0) == ""
    assert text(11 * HOUR, bytes_max=end) == ""
    assert text(11 * HOUR, bytes_max=(end - rows[0].position)), "at 80 % of the size"
