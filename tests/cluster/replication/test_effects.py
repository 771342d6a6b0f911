"""Effects: last value per queue, taken once, put back when the entry was not proposed."""

from __future__ import annotations

from cluster.replication.offset_order import Effects
from statemachine.command_table import unpack
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.dedup import EndSessions

P = b"\1" * 16


def test_the_last_offset_of_a_queue_counts_and_all_are_taken_once() -> None:
    effects = Effects(flush_ms=100)
    assert not effects.waiting
    effects.offset("g", 1, 0, 5, now_ms=1_000)
    effects.offset("g", 1, 0, 7, now_ms=1_050)
    effects.offset("h", 1, 0, 1, now_ms=1_050)
    effects.session_ended(P, now_ms=1_050)
    assert not effects.due(1_099)
    assert effects.due(1_100), "counted from the first"
    assert unpack(effects.take()) == [CommitOffsets([("g", 1, 0, 7), ("h", 1, 0, 1)]), EndSessions([P])]
    assert not effects.waiting
    assert effects.take() == b""


def test_what_was_not_proposed_comes_back_behind_newer_values() -> None:
    effects = Effects(flush_ms=100)
    effects.offset("g", 1, 0, 5, now_ms=0)
    effects.offset("g", 1, 1, 6, now_ms=0)
    effects.session_ended(P, now_ms=0)
    effects.take()
    effects.offset("g", 1, 0, 9, now_ms=10)
    effects.put_back()
    assert unpack(effects.take()) == [CommitOffsets([("g", 1, 0, 9), ("g", 1, 1, 6)]), EndSessions([P])]


def test_one_groups_offsets_can_be_taken_alone() -> None:
    effects = Effects(flush_ms=100)
    effects.offset("g", 1, 0, 5, now_ms=0)
    effects.offset("h", 1, 0, 6, now_ms=0)
    assert effects.has_offset("g", 1, 0)
    assert effects.take_group("g") == [("g", 1, 0, 5)]
    assert not effects.has_offset("g", 1, 0)
    assert unpack(effects.take()) == [CommitOffsets([("h", 1, 0, 6)])]


def test_what_is_dropped_is_not_proposed_in_a_later_term() -> None:
    effects = Effects(flush_ms=100)
    effects.session_ended(P, now_ms=0)
    effects.offset("g", 1, 0, 5, now_ms=0)
    effects.clear()
    assert not effects.waiting
    assert effects.take() == b""
