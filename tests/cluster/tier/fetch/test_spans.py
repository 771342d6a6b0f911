"""Spans: every message is in one, none goes across a border, and none reads more than three times what it is for."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster.tier.fetch.tier_log import AMPLIFICATION, DENSE, GAP_BYTES_MAX, SPAN_BYTES_MAX, LogSpan, is_dense, spans_of
from statemachine.payload import ITEM

# Gaps before, and sizes of, messages.
MESSAGES = st.lists(st.tuples(st.integers(0, 2 << 20), st.integers(1, 300_000)), min_size=1, max_size=60)


def packed(places: list[tuple[int, int]]) -> bytes:
    return b"".join(ITEM.pack(position, size, 0, 0, 0) for position, size in places)


def placed(messages: list[tuple[int, int]]) -> list[tuple[int, int]]:
    places, at = [], 5000
    for gap, size in messages:
        places.append((at + gap, size))
        at += gap + size
    return places


def of(span: LogSpan) -> list[tuple[int, int]]:
    return [(position, size) for position, size, *_ in ITEM.iter_unpack(span.items)]


@given(MESSAGES, st.lists(st.integers(0, 59), max_size=5))
def test_spans_have_every_message_once_and_keep_their_bounds(messages: list[tuple[int, int]], cuts: list[int]) -> None:
    places = placed(messages)
    ends = tuple(sorted({sum(places[cut]) for cut in cuts if cut < len(places)}))
    spans = list(spans_of(packed(places), ends))
    assert [place for span in spans for place in of(span)] == places
    for span in spans:
        inside = of(span)
        useful = sum(size for _, size in inside)
        assert (span.start, span.stop) == (inside[0][0], sum(inside[-1]))
        assert span.stop - span.start <= AMPLIFICATION * useful
        assert len(inside) == 1 or span.stop - span.start <= SPAN_BYTES_MAX
        assert all(after[0] - sum(before) <= GAP_BYTES_MAX for before, after in pairwise(inside))
        assert not any(span.start < end < span.stop for end in ends)


def test_neighbours_are_read_together() -> None:
    places = [(at, 1000) for at in accumulate([1000] * 2000)]
    assert [span.stop - span.start for span in spans_of(packed(places))] == [2_000_000]


def test_what_lies_far_apart_is_read_apart() -> None:
    places = [(at, 1000) for at in range(0, 1_000_000, 100_000)]
    assert len(list(spans_of(packed(places)))) == 10


def test_a_queue_of_a_few_is_read_in_large_spans_and_a_rare_one_by_message() -> None:
    in_turns = packed([(at, 1000) for at in range(0, 4_000_000, 4_000)])
    assert is_dense(in_turns)
    assert len(list(spans_of(in_turns, amplification=DENSE))) == 1
    rare = packed([(at, 1000) for at in range(0, 4_000_000, 100_000)])
    assert not is_dense(rare)
    assert len(list(spans_of(rare, amplification=DENSE))) == 40


def test_bursts_of_a_rare_queue_do_not_make_it_dense() -> None:
    bursts = [(base + at, 1000) for base in range(0, 400_000_000, 10_000_000) for at in range(0, 100_000, 1000)]
    assert not is_dense(packed(bursts))
    assert not is_dense(b"")


def test_nothing_is_no_span() -> None:
    assert list(spans_of(b"")) == []
