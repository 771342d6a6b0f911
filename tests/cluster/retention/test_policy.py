"""The segments that go, row by row: they have 100 bytes and 10 entries, one per hour from hour 1 on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.storage_sections import RetentionSection
from cluster.retention.policy import DiskFact, Floor, SegmentFact, TrimDecision, TrimFacts, decide
from tests.support.rows import each_row

HOUR = 3_600_000
RULES = RetentionSection(hours=72, delete_when="04")
SEGMENTS = tuple(SegmentFact(n * 100, n * 100 + 100, n * 10 + 10, (n + 1) * HOUR) for n in range(30))
"""The first one's last message is of hour 1, the last one's of hour 30."""


def facts(now: float, hour: int = 4, **more: Any) -> TrimFacts:
    return TrimFacts(now_ms=int(now * HOUR), hour=hour, end=3050, segments=more.pop("segments", SEGMENTS), **more)


def gone(given: TrimFacts, **rules: Any) -> TrimDecision:
    return decide(given, replace(RULES, **rules))


@each_row(
    ("now", "hour", "rules", "count", "reason"),
    [
        (72.9, 4, {}, 0, ""),
        (73.0, 4, {}, 1, "age"),  # the last message of the first segment is 72 hours old
        (75.5, 4, {}, 3, "age"),
        (75.5, 5, {}, 0, ""),  # not its hour
        (75.5, 5, {"delete_when": "04;05"}, 3, "age"),
        (75.5, 5, {"delete_when": ""}, 3, "age"),
        (75.5, 4, {"hours": 0}, 0, ""),  # for ever
        (2.5, 4, {"ms": HOUR}, 1, "age"),  # `ms` instead of hours
        (999, 4, {}, 10, "age"),  # so many at once
        (999, 4, {"delete_batch_files": 100}, 30, "age"),
        (1, 5, {"bytes_max": 3051}, 0, ""),
        (1, 5, {"bytes_max": 3050}, 0, ""),
        (1, 5, {"bytes_max": 3049}, 1, "size"),  # at any hour, of any age
        (1, 5, {"bytes_max": 2500}, 6, "size"),
        (73, 4, {"bytes_max": 2950, "delete_batch_files": 9}, 1, "size"),
    ],
)
def test_age_and_size(now: float, hour: int, rules: dict[str, Any], count: int, reason: str) -> None:
    decision = gone(facts(now, hour), **rules)
    assert (decision.count, decision.reason) == (count, reason)
    assert decision.position == count * 100
    if count:
        assert decision.first_index == count * 10
        assert (decision.more, decision.held) == (count == rules.get("delete_batch_files", 10), "")


def test_a_person_who_asks_need_not_wait_for_the_hour() -> None:
    assert gone(facts(75, hour=5, asked=True)).count == 3
    assert gone(facts(72, hour=5, asked=True)).count == 0, "but for the age"


@each_row(
    ("used", "freed", "now", "count", "reason"),
    [
        (7_500, 0, 75, 0, ""),
        (7_501, 0, 75, 3, "age"),  # above 75 %: any hour
        (7_501, 1, 75, 0, ""),  # files given up before are as good as gone
        (8_500, 0, 75, 3, "age"),
        (8_501, 0, 1, 1, "disk"),  # above 85 %: any age, until it is not above any more
        (8_700, 0, 1, 2, "disk"),
        (8_700, 200, 1, 0, ""),
        (8_700, 0, 76, 4, "disk, age"),
        (9_999, 0, 1, 10, "disk"),
    ],
)
def test_a_full_disk(used: int, freed: int, now: float, count: int, reason: str) -> None:
    decision = gone(facts(now, hour=5, disk=DiskFact(10_000, used, freed)))
    assert (decision.count, decision.reason) == (count, reason)


def test_a_disk_that_says_nothing_of_itself_is_empty() -> None:
    assert DiskFact(0, 5).percent() == 0
    assert gone(facts(1, hour=5, disk=DiskFact(0, 10**12))).count == 0


@pytest.mark.parametrize("reason", ["age", "size", "disk"])
def test_never_above_a_floor(reason: str) -> None:
    given = {
        "age": facts(99),
        "size": facts(1, disk=DiskFact(10_000, 1)),
        "disk": facts(1, disk=DiskFact(10_000, 9_900)),
    }[reason]
    rules: dict[str, Any] = {"bytes_max": 1} if reason == "size" else {}
    assert gone(given, **rules).count == 10
    for position, count in ((0, 0), (99, 0), (100, 1), (350, 3), (400, 4)):
        floors = [Floor(10_000, "far"), Floor(position, "the backup")]
        decision = gone(given._replace(floors=floors), **rules)
        assert (decision.count, decision.held, decision.more) == (count, "the backup", False)


def test_a_topic_that_keeps_its_messages_longer_holds_back_age_alone() -> None:
    longer = Floor(200, "topic audit")
    assert gone(facts(99, kept_longer=longer))[:5] == (200, 20, "age", 2, "topic audit")
    assert gone(facts(99, kept_longer=longer, disk=DiskFact(10_000, 9_900))).count == 10
    assert gone(facts(99, kept_longer=longer), bytes_max=1).count == 10


def test_a_floor_nobody_reaches_is_not_reported() -> None:
    assert gone(facts(74, floors=[Floor(200, "the backup")])) == TrimDecision(200, 20, "age", 2)


def test_a_log_with_one_segment_keeps_it() -> None:
    assert gone(facts(999, segments=())) == TrimDecision(3050, 0, "", 0)
