"""Ten thousand quotas, and quotas that change a hundred times a second: a change costs no look at all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.flow.quota_buckets import QuotaBuckets
from cluster.flow.quota_rules import QuotaRules
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, EntryType
from statemachine import commands
from statemachine.access.quotas import QUOTAS_MAX, ROWS_PER_COMMAND, SetQuotas
from statemachine.broker_state import BrokerState


class Leader:
    """A state, and the buckets of its leader."""

    def __init__(self) -> None:
        self.state = BrokerState(MemoryKV())
        self._tail = EMPTY_TAIL
        self._add(EntryType.GENESIS, b"")
        access: Any = SimpleNamespace(by_id={})
        self.rules = QuotaRules(self.state.quotas, access)
        self.buckets = QuotaBuckets(self.rules)

    def set(self, *quotas: tuple[str, dict[str, int] | None]) -> Any:
        return self._add(EntryType.COMMAND, commands.pack([SetQuotas(list(quotas), 1, "ann")]))[0]

    def _add(self, kind: int, data: bytes) -> Any:
        entry = make_entry(
            self._tail, term=1, entry_type=kind, payload=data, timestamp_ms=1, group_id=1, segment_size=1 << 26
        )
        self._tail = tail_after(self._tail, entry)
        return self.state.apply([entry]).results[0]


@pytest.fixture(scope="module")
def full() -> Leader:
    """A leader with as many quotas as there may be."""
    leader = Leader()
    for begin in range(0, QUOTAS_MAX, ROWS_PER_COMMAND):
        rows = [(f"topic=t{number}", {"send_messages": 5}) for number in range(begin, begin + ROWS_PER_COMMAND)]
        assert leader.set(*rows).ok
    return leader


class Watched(dict[str, Any]):
    """The rows, with a count of those that are read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)

    def __iter__(self) -> Any:
        raise AssertionError("all rows are looked through")

    def items(self) -> Any:
        raise AssertionError("all rows are looked through")

    def values(self) -> Any:
        raise AssertionError("all rows are looked through")


def test_one_more_is_refused_and_one_in_place_of_another_is_not(full: Leader) -> None:
    assert full.set(("topic=more", {"send_messages": 1})).code == "refused"
    assert full.set(("topic=t1", None), ("topic=more", {"send_messages": 1})).ok
    assert full.set(("topic=t1", {"send_messages": 5}), ("topic=more", None)).ok
    assert len(full.state.quotas.by_subject) == QUOTAS_MAX


def test_a_change_of_one_looks_at_none_of_the_others(full: Leader) -> None:
    """Limits that change a hundred times a second, for some seconds, under ten thousand rows."""
    for number in range(500):
        assert full.set(("topic=t7", {"send_messages": 1 + number % 3})).ok
        rows = full.state.quotas.by_subject = Watched(full.state.quotas.by_subject)
        assert full.buckets.active
        (bucket,) = full.buckets.of(0, "10.0.0.1", "t7", 0)
        assert bucket.rule.value == 1 + number % 3
        bucket.take(0, 100, 0)
        assert full.buckets.of(0, "10.0.0.1", "nobody", 0) == ()
        assert rows.reads <= 12
    assert [each.owner for each in full.buckets.all()] == ["topic=t7"]


@pytest.mark.parametrize("limits", [(20, 21), (20, None), (20, 2_000_000)])
def test_limits_that_change_all_the_time_let_nothing_more_through(limits: tuple[int, int | None]) -> None:
    leader = Leader()
    passed, now_ms = 0, 1_000_000
    for number in range(300):  # 100 changes a second
        now_ms += 10
        value = limits[number % 2]
        leader.set(("topic=T", None if value is None else {"send_messages": value}))
        if value is not None and value < 100:
            for bucket in leader.buckets.of(0, "", "T", now_ms):
                while bucket.opens_ms() <= now_ms:
                    bucket.take(now_ms, 1, 0)
                    passed += 1
    assert 40 <= passed <= 21 * 4 + 1


def test_the_names_of_limits_are_counted_through_all_changes() -> None:
    leader = Leader()
    quotas = leader.state.quotas
    assert quotas.limited == frozenset()
    leader.set(("topic=T", {"send_bytes": 1, "backlog_bytes": 2}), ("topic=U", {"send_bytes": 1}))
    assert quotas.limited == {"send_bytes", "backlog_bytes"}
    leader.set(("topic=T", {"send_messages": 1}))
    assert quotas.limited == {"send_bytes", "send_messages"}
    leader.set(("topic=U", None), ("topic=T", {"send_messages": 7}))
    assert quotas.limited == {"send_messages"}
    leader.set(("topic=T", None))
    assert quotas.limited == frozenset()
    assert BrokerState(MemoryKV()).quotas.limited == frozenset()
