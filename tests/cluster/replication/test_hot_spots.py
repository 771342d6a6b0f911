"""The heaviest queues and keys: what is named, how far estimates may be off, and what is forgotten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.replication.hot_spots import KEY_BYTES_MAX, STRIDE, WINDOW_MS, HotSpots, key_of
from cluster.runtime.figures.heavy_hitters import HeavyHitters
from cluster.runtime.figures.thread_time import wanted_s


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))), st.integers(1, 12))
def test_what_is_heavy_is_always_named_and_never_by_more_than_it_may_be_off(
    stream: list[tuple[int, int]], places: int
) -> None:
    sketch, truth = HeavyHitters[int](places), Counter[int]()
    for item, count in stream:
        sketch.add(item, count)
        truth[item] += count
    assert sketch.total == truth.total()
    assert len(sketch) <= places
    found = {each.item: each for each in sketch.heaviest(places)}
    for item, count in truth.items():
        if count > truth.total() / places:
            assert item in found
    for item, each in found.items():
        assert each.sure <= truth[item] <= each.times
        assert each.error <= truth.total() / places


def _cursor(topic_id: int, queue_id: int) -> Any:
    return SimpleNamespace(topic_id=topic_id, queue_id=queue_id)


class Feed:
    """Entries one after the other, as the leader's figures take them (`ProposalMetrics.settled`)."""

    def __init__(self, hot: HotSpots) -> None:
        self._hot, self._left = hot, STRIDE

    def __call__(self, touched: list[tuple[Any, int, int, int]], sends: list[Any]) -> None:
        for cursor, _, count, _ in touched:
            self._left -= count
            if self._left < 0:
                self._left = self._hot.look(cursor, self._left, sends)


def _send(topic_id: int, properties: bytes, batch: tuple[Any, ...] = ()) -> Any:
    return SimpleNamespace(slot=SimpleNamespace(topic_id=topic_id), properties=properties, batch=batch)


def test_a_queue_with_most_of_the_messages_is_named_with_about_its_share() -> None:
    used_s = iter([1.0, 3.0])
    hot = HotSpots(0, lambda: next(used_s))
    note = Feed(hot)
    for _ in range(2_000):
        # Each entry alike, as senders with a rhythm make them: a fixed distance would count one queue alone.
        note([(_cursor(1, 0), 0, 8, 0), (_cursor(1, 1), 0, 8, 0), (_cursor(2, 0), 0, 48, 0)], [])
    assert hot.ends_ms == WINDOW_MS
    assert not hot.last.messages
    hot.end_window(WINDOW_MS)
    assert hot.last.busy == 2.0 / (WINDOW_MS / 1_000)
    total = 2_000 * 64
    assert abs(hot.last.messages - total) < 0.05 * total
    shares = {each.item: each.sure / hot.last.messages for each in hot.last.queues}
    assert next(iter(shares)) == (2, 0)
    assert abs(shares[2, 0] - 0.75) < 0.05
    assert abs(shares[1, 0] - 0.125) < 0.05
    assert hot.last.topics().most_common(1)[0][0] == 2


def test_a_thread_that_computes_wants_a_core(tmp_path: Path) -> None:
    began = wanted_s()
    sum(range(3_000_000))
    computed = wanted_s()
    assert computed - began > 0.01
    stat = tmp_path / "schedstat"
    stat.write_text("1500000000 500000000 7\n")
    assert wanted_s(stat) == 2.0
    for text in ("", "x y z", "1 2"):
        stat.write_text(text)
        assert wanted_s(stat) < computed + 1
    assert wanted_s(tmp_path / "none") > 0


def test_a_key_is_the_sharding_key_or_the_first_word_of_keys() -> None:
    assert key_of(_send(1, b"KEYS\x01a b\x02")) == "a"
    assert key_of(_send(1, b"KEYS\x01a b\x02__SHARDINGKEY\x01order 7\x02")) == "order 7"
    assert key_of(_send(1, b"TAGS\x01x\x02")) == ""
    assert key_of(_send(1, b"", (SimpleNamespace(properties=b"KEYS\x01in-batch\x02"),))) == "in-batch"
    assert len(key_of(_send(1, b"KEYS\x01" + 1000 * b"k" + b"\x02"))) == KEY_BYTES_MAX
    assert key_of(_send(1, b"KEYS\x01\xff\xfe\x02")) == "��"


def test_keys_are_counted_by_topic() -> None:
    hot = HotSpots(0)
    note = Feed(hot)
    often, rare = _send(1, b"KEYS\x01often\x02"), _send(2, b"KEYS\x01often\x02")
    for _ in range(1_000):
        note([(_cursor(1, 0), 0, STRIDE, 0)], [often, often, often, rare])
    hot.end_window(WINDOW_MS)
    found = {each.item: each.sure / hot.last.messages for each in hot.last.keys}
    assert set(found) == {(1, "often"), (2, "often")}
    assert abs(found[1, "often"] - 0.75) < 0.05


def test_what_was_hot_is_forgotten_after_a_window_without_messages() -> None:
    hot = HotSpots(0)
    note = Feed(hot)
    note([(_cursor(1, 0), 0, 10 * STRIDE, 0)], [])
    hot.end_window(WINDOW_MS)
    assert hot.last.queues
    hot.end_window(2 * WINDOW_MS)
    assert (hot.last.took_ms, hot.last.queues, hot.last.keys) == (0, [], [])


def test_a_thousand_queues_take_no_more_places_than_there_are() -> None:
    hot = HotSpots(0)
    note = Feed(hot)
    for number in range(5_000):
        note([(_cursor(number % 1_000, 0), 0, STRIDE, 0)], [_send(1, b"KEYS\x01%d\x02" % number)])
    hot.end_window(WINDOW_MS)
    assert len(hot.last.queues) <= 64
    assert len(hot.last.keys) <= 128
