"""What a topic keeps, against its quota: measured now and then, and counted between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cluster.flow.backlogs import MEASURED_AT_ONCE, MEASURED_EVERY_MS, REFUSING_EVERY_MS, Backlog, Backlogs
from cluster.flow.quota_rules import QuotaRules
from statemachine.access.quotas import Quota

T, U = 1, 2


class Bed:
    """Quotas, and which topics give up their oldest messages."""

    def __init__(self, **limits: int) -> None:
        self.evicting: set[str] = set()
        self.set(**limits)
        rows: Any = self
        self.rules = QuotaRules(rows, SimpleNamespace(by_id={}))  # type: ignore[arg-type]
        self.backlogs = Backlogs(self.rules, lambda topic: topic in self.evicting)

    def set(self, **limits: int) -> None:
        rows = {f"topic={name.replace('every', '*')}": {"backlog_bytes": size} for name, size in limits.items()}
        self.by_subject = {subject: Quota(given, 0, "") for subject, given in rows.items()}
        self.limited = {"backlog_bytes"} if limits else set()

    def of(self, topic: str, topic_id: int) -> Backlog:
        found = self.backlogs.of(topic, topic_id)
        assert found is not None
        return found


def test_nothing_is_refused_before_it_was_measured() -> None:
    bed = Bed(T=100)
    assert bed.backlogs.active
    backlog = bed.of("T", T)
    assert all(backlog.takes(50, 0) for _ in range(5))
    assert bed.backlogs.due(0) == [T]
    assert bed.backlogs.due(5_000) == [], "it is under way"
    assert backlog.takes(30, 1), "while it is measured"
    bed.backlogs.measured({T: 40, 99: 1})
    assert backlog.kept == 70, "what came meanwhile is added"
    assert backlog.takes(30, 2)
    assert not backlog.takes(1, 3)
    assert backlog.told() == "100 bytes in its queues, has 100"


def test_it_is_measured_again_while_somebody_sends_and_sooner_while_it_refuses() -> None:
    bed = Bed(T=100)
    backlog = bed.of("T", T)
    backlog.takes(10, 1_000)
    assert bed.backlogs.due(1_000) == [T]
    bed.backlogs.measured({T: 90})
    assert bed.backlogs.due(1_000 + MEASURED_EVERY_MS) == [], "nobody has sent since"
    assert backlog.takes(1, 1_500)
    assert bed.backlogs.due(1_500 + REFUSING_EVERY_MS) == []
    assert not backlog.takes(50, 1_600)
    backlog.refuse(1_600)
    assert bed.backlogs.due(1_000 + REFUSING_EVERY_MS) == [T]
    bed.backlogs.measured({T: 20})
    assert backlog.takes(50, 2_100), "something has gone"


def test_a_quota_that_changes_keeps_what_is_known() -> None:
    bed = Bed(T=100)
    backlog = bed.of("T", T)
    backlog.takes(1, 0)
    bed.backlogs.due(0)
    bed.backlogs.measured({T: 60})
    bed.set(every=50)
    assert not bed.of("T", T).takes(1, 1)
    bed.set(every=500, T=40)
    assert not bed.of("T", T).takes(1, 1), "its own, though that of all still holds"
    bed.set(every=500)
    assert bed.of("T", T).takes(1, 1)
    assert bed.backlogs.of("%RETRY%g", U) is None, "made by the cluster"
    bed.set()
    assert not bed.backlogs.active
    assert bed.backlogs.of("T", T) is None
    bed.set(T=10)
    assert bed.of("T", T).takes(100, 1), "it is not known any more"


def test_a_topic_that_gives_up_its_oldest_refuses_nothing() -> None:
    bed = Bed(T=100)
    bed.evicting.add("T")
    assert bed.backlogs.of("T", T) is None
    bed.evicting.clear()
    assert bed.backlogs.of("T", T) is None
    bed.backlogs.topic_changed("T")
    assert bed.of("T", T)


def test_so_many_are_measured_at_once() -> None:
    bed = Bed(every=100)
    many = 2 * MEASURED_AT_ONCE + 1
    for topic_id in range(many):
        bed.of(f"t{topic_id}", topic_id).takes(1, 10)
    ids = list(range(many))
    parts = [ids[:MEASURED_AT_ONCE], ids[MEASURED_AT_ONCE : 2 * MEASURED_AT_ONCE], ids[2 * MEASURED_AT_ONCE :], []]
    assert [bed.backlogs.due(20 + n) for n in range(4)] == parts
