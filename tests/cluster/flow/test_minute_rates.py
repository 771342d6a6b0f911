"""Rates a minute: how many at once, when again, and who counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.flow.gate import Gate
from cluster.flow.minute_rates import MinuteRates
from cluster.flow.quota_limits import NEW_GROUPS, NEW_TOPICS
from cluster.flow.quota_rules import QuotaRules
from statemachine.access.quotas import Quota
from tests.support.contexts import CONFIG
from tests.support.rows import each_row

ANN = 1
MINUTE_MS = 60_000


class Bed:
    """The rates of a node, and its clock."""

    def __init__(self, limits: dict[str, dict[str, int]]) -> None:
        self.now_ms = 1_000_000
        self.by_subject: dict[str, Quota] = {}
        self.set(limits)
        rows: Any = self
        self.rules = QuotaRules(rows, SimpleNamespace(by_id={ANN: SimpleNamespace(name="ann")}))  # type: ignore[arg-type]
        self.counted: list[str] = []
        gate = Gate(CONFIG, count_quota=self.counted.append)
        self.rates = MinuteRates(self.rules, (NEW_TOPICS, NEW_GROUPS), gate, lambda: self.now_ms)

    def set(self, limits: dict[str, dict[str, int]]) -> None:
        self.by_subject = {subject: Quota(given, 0, "") for subject, given in limits.items()}
        self.limited = frozenset(name for given in limits.values() for name in given)

    def takes(self, limit: str = NEW_TOPICS, user: int = 0, address: str = "1.1.1.1") -> bool:
        return self.rates.take(limit, user, address) is None


@each_row("rate", [1, 3, 7, 11, 60])
def test_a_minutes_worth_at_once_and_then_one_after_the_other(rate: int) -> None:
    bed = Bed({"address=*": {"new_topics": rate}})
    assert [bed.takes() for _ in range(rate + 2)] == [True] * rate + [False, False]
    assert bed.takes(address="1.1.1.2"), "everybody has a minute's worth of his own"
    over = bed.rates.take(NEW_TOPICS, 0, "1.1.1.1")
    assert over is not None
    assert over.again_ms == -(-MINUTE_MS // rate)
    assert over.remark == f"address=1.1.1.1 may have {rate} new topic{'s' * (rate > 1)} a minute (quota address=*)"
    bed.now_ms += over.again_ms - 1
    assert not bed.takes()
    bed.now_ms += 1
    assert bed.takes()
    assert not bed.takes()
    assert bed.counted == [NEW_TOPICS] * 5
    assert [(each.owner, each.refused) for each in bed.rules.refusals() if each.refused] == [("address=1.1.1.1", 5)]


def test_each_limit_has_its_own_and_who_has_none_is_free() -> None:
    bed = Bed({"user=ann": {"new_topics": 1}, "user=*": {"new_topics": 5, "new_groups": 1}})
    assert bed.takes(NEW_TOPICS, ANN)
    assert not bed.takes(NEW_TOPICS, ANN)
    assert bed.takes(NEW_GROUPS, ANN), "of the wider row, which alone has this limit"
    assert not bed.takes(NEW_GROUPS, ANN)
    assert all(bed.takes() for _ in range(100)), "nobody has signed"
    bed.rates.forget()
    assert bed.takes(NEW_TOPICS, ANN), "a leader that begins"


@given(st.integers(1, 100), st.lists(st.integers(0, 9_000), max_size=200))
def test_no_minute_has_more_than_twice_the_rate(rate: int, pauses_ms: list[int]) -> None:
    bed = Bed({"address=*": {"new_topics": rate}})
    taken: list[int] = []
    for pause_ms in pauses_ms:
        bed.now_ms += pause_ms
        if bed.takes():
            taken.append(bed.now_ms)
    for first, begin_ms in enumerate(taken):
        for number, end_ms in enumerate(taken[first:], start=1):
            assert number <= rate * (1 + (end_ms - begin_ms + 1) / MINUTE_MS) + 1e-6
