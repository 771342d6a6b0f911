"""Topics that give up their oldest messages when they keep more than their quota allows."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.retention.backlog_eviction import grown, together
from cluster.retention.policy import STEP_OFFSETS
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, EntryType
from statemachine import commands, payload
from statemachine.access.quotas import SetQuotas
from statemachine.broker_state import BrokerState
from statemachine.topics.topics import CreateTopic

SIZE = 10


class Leader:
    """A state with topics, and messages of SIZE bytes where and when a test wants some."""

    def __init__(self, **policies: str) -> None:
        self.state = BrokerState(MemoryKV())
        self._tail = EMPTY_TAIL
        self._add(EntryType.GENESIS, b"", 0)
        for name, chosen in policies.items():
            attributes = {"backlog.policy": chosen} if chosen else {}
            config = {"name": name, "read_queues": 3, "write_queues": 3, "attributes": attributes}
            assert self.run(CreateTopic(config, False))[0].ok

    def run(self, *commanded: commands.Command) -> Sequence[commands.CommandResult]:
        return self._add(EntryType.COMMAND, commands.pack(list(commanded)), self._tail.timestamp_ms)

    def limit(self, subject: str, size: int) -> None:
        assert self.run(SetQuotas([(subject, {"backlog_bytes": size})], 1, "ann"))[0].ok

    def store(self, topic: str, queue_id: int, now_ms: int, count: int) -> None:
        topic_id = self.state.topics[topic].id
        at = self._tail.end_position + payload.MESSAGES_AT
        items = b"".join(payload.ITEM.pack(at + SIZE * n, SIZE, 0, 0, now_ms) for n in range(count))
        run = payload.Run(topic_id, queue_id, self.state.max_offset(topic_id, queue_id), count, 0, items)
        self._add(EntryType.MESSAGES, payload.encode([b"m" * SIZE * count], count, [run]), now_ms)

    def firsts(self, topic: str) -> dict[int, int]:
        """Queue -> its new first offset."""
        topic_id = self.state.topics[topic].id
        return {queue: first for each, queue, first in grown(self.state).queues if each == topic_id}

    def _add(self, kind: int, data: bytes, now_ms: int) -> Sequence[commands.CommandResult]:
        entry = make_entry(
            self._tail, term=1, entry_type=kind, payload=data, timestamp_ms=now_ms, group_id=1, segment_size=1 << 26
        )
        self._tail = tail_after(self._tail, entry)
        return self.state.apply([entry]).results[0]


def test_the_oldest_of_all_queues_go_until_the_rest_fits() -> None:
    leader = Leader(t="evict")
    leader.store("t", 0, 1_000, 30)
    leader.store("t", 1, 2_000, 30)
    leader.store("t", 0, 3_000, 30)
    leader.store("t", 2, 4_000, 30)
    leader.limit("topic=t", 120 * SIZE)
    assert leader.firsts("t") == {}, "it fits"
    leader.limit("topic=t", 95 * SIZE)
    assert leader.firsts("t") == {0: 25}, "of one millisecond as many as are too many"
    leader.limit("topic=t", 45 * SIZE)
    assert leader.firsts("t") == {0: 45, 1: 30}
    leader.limit("topic=t", 1)
    assert leader.firsts("t") == {0: 60, 1: 30, 2: 30}, "none is as small as that"


def test_only_topics_that_want_it_lose_messages() -> None:
    leader = Leader(a="refuse", b="", c="evict", d="evict")
    for name in "abcd":
        leader.store(name, 0, 1_000, 30)
    assert grown(leader.state) == ([], ""), "there is no quota"
    leader.limit("topic=*", 20 * SIZE)
    leader.limit("topic=d", 30 * SIZE)
    assert [leader.firsts(name) for name in "abcd"] == [{}, {}, {0: 10}, {}]


def test_a_look_measures_so_many_topics_and_the_next_one_the_others() -> None:
    leader = Leader(**dict.fromkeys("abcde", "evict"))
    for name in "abcde":
        leader.store(name, 0, 1_000, 30)
    leader.limit("topic=*", 20 * SIZE)
    at, names, seen = "", {topic.id: topic.name for topic in leader.state.topics.values()}, []
    for _ in range(3):
        queues, at = grown(leader.state, at, measured_max=2, page_topics=2)
        seen.append(("".join(names[topic_id] for topic_id, _, _ in queues), at))
    assert seen == [("ab", "c"), ("cd", "e"), ("e", "")]


def test_a_trim_takes_no_more_than_it_can_apply() -> None:
    leader = Leader(t="evict")
    leader.store("t", 0, 1_000, STEP_OFFSETS + 30)
    leader.limit("topic=t", 10 * SIZE)
    assert leader.firsts("t") == {0: STEP_OFFSETS}


def test_a_queue_that_is_too_old_and_too_large_is_named_once() -> None:
    assert together([(1, 0, 5), (1, 1, 9)], [(1, 0, 8), (1, 1, 2), (2, 0, 1)]) == [(1, 0, 8), (1, 1, 9), (2, 0, 1)]
