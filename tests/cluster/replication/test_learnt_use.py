"""How a leader counts by learnt limits, and how the queue serves and cuts topics that are over theirs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from cluster.replication.learnt_use import BURST_MS, HOUR_MS, OVER_MS, LearntUse, TopicUse
from statemachine.access.learnt_limits import LearntHead, LearntLimits, LearntMode

HEAD = LearntHead("ab" * 32, 1, LearntMode.ON, 1, 1, 1, 1 << 50, 1, "ann")
MONDAY_MS = 4 * 24 * HOUR_MS


def limits(*hours: int, **head: Any) -> LearntLimits:
    values = [*hours, *[0] * (24 - len(hours))]
    return LearntLimits(HEAD._replace(**head), {"t": msgpack.packb([values, [0] * 24])})


def used(found: LearntLimits | None) -> LearntUse:
    family: Any = SimpleNamespace(in_force=found)
    return LearntUse(family)


def send(topic: str, body: bytes = b"x", batch: tuple[Any, ...] = ()) -> Any:
    return SimpleNamespace(slot=SimpleNamespace(name=topic, topic_id=len(topic)), body=body, batch=batch)


def test_what_is_over_takes_nothing() -> None:
    """So a topic that sends three times its limit has two thirds over it, and not all."""
    use = TopicUse("t")
    use.limit(0, 10, 0)
    for at_ms in range(0, 600_000, 100):
        use.came(at_ms, 3, 0)
    assert use.seen == 18_000
    assert use.over == pytest.approx(12_000, rel=0.02)
    assert use.is_over(600_000)
    assert not use.is_over(600_000 + OVER_MS)


def test_ten_seconds_worth_comes_at_once() -> None:
    use = TopicUse("t")
    use.limit(0, 10, 0)
    for _ in range(101):
        use.came(5, 1, 0)
    assert use.over == 0
    use.came(5, 1, 0)
    assert use.over == 1
    use.came(5 + BURST_MS, 100, 0)
    assert use.over == 1


def test_bytes_are_a_limit_as_well_and_none_is_none() -> None:
    use = TopicUse("t")
    use.limit(0, 0, 100)
    for _ in range(3):
        use.came(0, 1, 1_000)
    assert (use.over, use.told()) == (1, "100 bytes of bodies")
    use.limit(1, 0, 0)
    free = TopicUse("t")
    for _ in range(1_000):
        free.came(0, 1_000, 1_000_000)
    assert free.over == 0


def test_each_read_is_counted_by_topic_and_batches_by_their_messages() -> None:
    learnt = used(limits(5))
    learnt.look(MONDAY_MS, 0, overloaded=False)
    batch = (SimpleNamespace(body=b"12"), SimpleNamespace(body=b"345"))
    learnt.came([send("t"), send("t", b"abc"), send("none"), send("t", batch=batch)], 0)
    (use,) = learnt.all()
    assert (use.topic, use.seen, use.messages) == ("t", 4, 5)
    assert learnt.of("none") is None


def test_the_hour_is_that_of_log_time_and_a_clock_that_jumps_changes_no_more() -> None:
    learnt = used(limits(5, 7))
    for log_ms, expected in ((0, 5), (HOUR_MS, 7), (0, 5), (23 * HOUR_MS, 0)):
        learnt.look(MONDAY_MS + log_ms, 0, overloaded=False)
        learnt.came([send("t")], 0)
        (use,) = learnt.all()
        assert use.messages == expected
    assert use.seen == 4


@pytest.mark.parametrize(
    ("mode", "overloaded", "ends_ms", "demoted"),
    [
        (LearntMode.ON, True, 1 << 50, {1}),
        (LearntMode.ON, False, 1 << 50, set()),
        (LearntMode.SHADOW, True, 1 << 50, set()),
        (LearntMode.ON, True, MONDAY_MS + 1, set()),
    ],
)
def test_topics_are_demoted_only_in_an_overload_by_limits_that_count(
    mode: LearntMode, overloaded: bool, ends_ms: int, demoted: set[int]
) -> None:
    learnt = used(limits(1, mode=mode, ends_ms=ends_ms))
    learnt.look(MONDAY_MS, 0, overloaded=False)
    for _ in range(50):
        learnt.came([send("t")], 100)
    learnt.look(MONDAY_MS + 1, 200, overloaded=overloaded)
    assert learnt.demoted == demoted
    assert learnt.expired is (ends_ms == MONDAY_MS + 1)
    learnt.look(MONDAY_MS + 1, 100 + OVER_MS, overloaded=overloaded)
    assert not learnt.demoted


def test_other_limits_begin_with_full_buckets_and_another_mode_does_not() -> None:
    family: Any = SimpleNamespace(in_force=limits(1))
    learnt = LearntUse(family)
    learnt.look(MONDAY_MS, 0, overloaded=False)
    learnt.came([send("t")], 0)
    family.in_force = limits(1, mode=LearntMode.SHADOW)
    learnt.look(MONDAY_MS, 0, overloaded=False)
    assert learnt.of("t") is not None
    family.in_force = limits(2)
    learnt.look(MONDAY_MS, 0, overloaded=False)
    assert learnt.of("t") is None
    family.in_force = None
    learnt.look(MONDAY_MS, 0, overloaded=True)
    assert (learnt.active, learnt.expired, learnt.limits) == (False, False, None)


@pytest.mark.parametrize("days", [-400, -7, -1, 1, 7, 400])
def test_a_clock_that_jumps_by_days_changes_whose_hour_it_is_and_gives_nothing_back(days: int) -> None:
    """The buckets have the monotonic time, so what a topic has used of its ten seconds' worth stays used."""
    learnt = used(limits(5, 7))
    learnt.look(500 * 24 * HOUR_MS, 0, overloaded=False)
    for _ in range(60):
        learnt.came([send("t")], 0)
    (use,) = learnt.all()
    assert (use.messages, use.over) == (5, 9)
    learnt.look((500 + days) * 24 * HOUR_MS + HOUR_MS, 10, overloaded=False)
    learnt.came([send("t")], 10)
    assert (use.messages, use.over) == (7, 10)
    learnt.look(500 * 24 * HOUR_MS, 20, overloaded=False)
    learnt.came([send("t")], 20)
    assert (use.messages, use.over) == (5, 11)


def test_the_end_of_the_limits_is_one_of_log_time_in_both_directions() -> None:
    learnt = used(limits(5, ends_ms=MONDAY_MS))
    for log_ms, active in ((MONDAY_MS - 1, True), (MONDAY_MS + 9 * HOUR_MS, False), (MONDAY_MS - 9 * HOUR_MS, True)):
        learnt.look(log_ms, 0, overloaded=False)
        assert (learnt.active, learnt.expired) == (active, not active)


def test_a_group_of_brokers_has_the_part_of_a_limit_that_it_has_of_the_queues() -> None:
    family: Any = SimpleNamespace(in_force=limits(10))
    parts = [Fraction(1, 4), Fraction(1)]
    learnt = LearntUse(family, lambda topic: parts[0])
    learnt.look(MONDAY_MS, 0, overloaded=False)
    as_it_was, as_it_is = send("t"), send("t")
    learnt.came([as_it_was], 0)
    (use,) = learnt.all()
    assert use.messages == 3
    parts.pop(0)
    learnt.came([as_it_was], 0)
    assert use.messages == 3
    learnt.came([as_it_is], 0)
    assert use.messages == 10


def test_messages_are_counted_by_what_became_of_them() -> None:
    family: Any = SimpleNamespace(in_force=limits(1))
    counts = Counter[str]()
    learnt = LearntUse(family, count=lambda outcome, messages: counts.update({outcome: messages}))
    learnt.look(MONDAY_MS, 0, overloaded=False)
    for _ in range(15):
        learnt.came([send("t")], 0)
    learnt.came([send("unknown")], 0)
    learnt.cut([send("t", batch=(1, 2)), send("unknown")], 0)
    assert counts == {"within": 11, "over": 4, "cut": 2}
