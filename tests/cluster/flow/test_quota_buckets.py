"""The buckets of quotas: whose quota counts, and how much it lets through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.flow.quota_buckets import BUCKETS_MAX, BURST_MS, QuotaBuckets
from cluster.flow.quota_rules import QuotaRules
from statemachine.access.quotas import Quota

ANN, BEA = 1, 2


class Rows:
    """Quotas and users of a cluster."""

    def __init__(self, **limits: dict[str, int]) -> None:
        self.set({subject.replace("__", "="): given for subject, given in limits.items()})

    def set(self, limits: dict[str, dict[str, int]]) -> None:
        self.by_subject = {subject: Quota(given, 0, "") for subject, given in limits.items()}
        self.limited = {name for given in limits.values() for name in given}

    def buckets(self, buckets_max: int = BUCKETS_MAX) -> QuotaBuckets:
        users = {ANN: SimpleNamespace(name="ann"), BEA: SimpleNamespace(name="bea")}
        rules = QuotaRules(self, SimpleNamespace(by_id=users))  # type: ignore[arg-type]
        made: Any = QuotaBuckets(rules, buckets_max=buckets_max)
        assert made.active is bool(self.by_subject)
        found: QuotaBuckets = made
        return found


def subjects(buckets: QuotaBuckets, user: int, address: str, topic: str) -> list[tuple[str, str]]:
    return [(each.subject, each.owner) for each in buckets.of(user, address, topic, 0)]


def test_the_narrowest_quota_of_the_sender_counts_and_that_of_the_topic() -> None:
    rows, one = Rows(), {"send_messages": 1}
    assert not rows.buckets().active
    every = ["user=ann,topic=t", "user=ann", "user=*,topic=t", "user=*", "address=1.1.1.1", "address=*", "topic=t"]
    rows.set(dict.fromkeys([*every, "topic=*"], one))
    buckets = rows.buckets()
    assert subjects(buckets, ANN, "1.1.1.1", "t") == [("user=ann,topic=t", "user=ann,topic=t"), ("topic=t", "topic=t")]
    assert subjects(buckets, ANN, "1.1.1.1", "u") == [("user=ann", "user=ann"), ("topic=*", "topic=u")]
    assert subjects(buckets, BEA, "1.1.1.1", "t") == [("user=*,topic=t", "user=bea,topic=t"), ("topic=t", "topic=t")]
    assert subjects(buckets, BEA, "1.1.1.1", "u") == [("user=*", "user=bea"), ("topic=*", "topic=u")]
    assert subjects(buckets, 0, "1.1.1.1", "%RETRY%g") == [("address=1.1.1.1", "address=1.1.1.1")]
    assert subjects(buckets, 0, "1.1.1.2", "%RETRY%g") == [("address=*", "address=1.1.1.2")]


def test_each_limit_is_looked_up_by_itself() -> None:
    """A narrow row takes the place of a wider one for the limits that it has, and for no others."""
    rows = Rows(**{"user__*": {"send_messages": 2, "send_bytes": 10}, "user__ann": {"requests": 1}})
    rows.set({**{k: dict(q.limits) for k, q in rows.by_subject.items()}, "user=ann,topic=t": {"send_bytes": 5}})
    buckets = rows.buckets()
    found = {(each.rule.limit, each.subject, each.owner) for each in buckets.of(ANN, "", "t", 0)}
    assert found == {
        ("send_messages", "user=*", "user=ann"),
        ("send_bytes", "user=ann,topic=t", "user=ann,topic=t"),
    }
    of_t, of_u = buckets.of(ANN, "", "t", 0), buckets.of(ANN, "", "u", 0)
    assert of_t[0] is of_u[0], "ann has one rate of messages for both topics"
    assert of_u[1].subject == "user=*"


def test_owners_are_forgotten_while_rows_come_and_go() -> None:
    rows = Rows(topic__t0={"send_messages": 1})
    buckets = rows.buckets(40)
    for n in range(200):
        rows.set({f"topic=t{n}": {"send_messages": 1}, "topic=kept": {"send_messages": 1}})
        for topic in (f"t{n}", "kept"):
            for each in buckets.of(ANN, "", topic, 0):
                each.take(0, 50, 0)
    assert len(list(buckets.all())) <= 41
    assert [each.owner for each in buckets.rules.in_force(buckets.all())] == ["topic=kept", "topic=t199"]
    assert buckets.of(ANN, "", "kept", 0)[0].opens_ms() > 0, "what was taken is not forgotten"


def test_everybody_has_a_bucket_of_his_own_and_one_for_all_topics() -> None:
    buckets = Rows(**{"user__*": {"send_messages": 2}, "topic__*": {"send_bytes": 10}}).buckets()
    (ann, t), (also_ann, u), (bea, _) = (
        buckets.of(*who, 0) for who in [(ANN, "", "t"), (ANN, "", "u"), (BEA, "", "t")]
    )
    assert ann is also_ann is not bea
    assert t is not u


def test_a_changed_quota_counts_at_once_and_others_keep_what_was_taken() -> None:
    rows = Rows(user__ann={"send_messages": 1}, user__bea={"send_messages": 1})
    buckets = rows.buckets()
    for user in (ANN, BEA):
        buckets.of(user, "", "t", 0)[0].take(0, 50, 0)
    rows.set({"user=ann": {"send_messages": 2}, "user=bea": {"send_messages": 1}})
    assert buckets.active
    assert buckets.of(ANN, "", "t", 0)[0].opens_ms() == pytest.approx(24_500), "50 are taken, of two a second"
    assert buckets.of(BEA, "", "t", 0)[0].opens_ms() == pytest.approx(50_000)
    buckets.forget()
    assert buckets.of(BEA, "", "t", 0)[0].opens_ms() <= 0, "a new leader begins with full buckets"
    rows.set({"user=ann": {"of_later": 1}})
    assert not buckets.active, "a limit that this version does not know"


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 50)), min_size=1, max_size=100))
def test_a_limit_that_changes_all_the_time_is_one(changes: list[tuple[int, int]]) -> None:
    """Whoever takes all that there is, after each change: as much as the highest of the limits and its burst allow."""
    rows = Rows(user__ann={"send_messages": 1})
    buckets, now_ms, taken = rows.buckets(), 0, 0
    for rate, pause_ms in changes:
        rows.set({"user=ann": {"send_messages": rate}})
        now_ms += pause_ms
        (bucket,) = buckets.of(ANN, "", "t", now_ms)
        while bucket.opens_ms() <= now_ms:
            bucket.take(now_ms, 1, 0)
            taken += 1
    assert taken <= max(rate for rate, _ in changes) * (now_ms + BURST_MS) / 1000 + 1


def test_a_changed_limit_keeps_its_share_and_what_was_refused() -> None:
    rows = Rows(user__ann={"send_messages": 10})
    buckets = rows.buckets()
    (before,) = buckets.of(ANN, "", "t", 0)
    before.take(0, 20, 0)
    before.refuse(500)
    assert before.measure(1_000, 0) == pytest.approx(2.0)
    before.begin(0.25)
    rows.set({"user=ann": {"send_messages": 20}})
    (after,) = buckets.of(ANN, "", "t", 1_000)
    assert (after.share, after.refused, after.refused_ms) == (0.25, 1, 500)
    assert after.demand == pytest.approx(1.0), "of twice the rate"


def test_who_is_given_more_waits_no_longer_than_an_empty_bucket_takes() -> None:
    rows = Rows(user__ann={"send_bytes": 10})
    buckets = rows.buckets()
    buckets.of(ANN, "", "t", 0)[0].take(0, 1, 5_000)
    rows.set({"user=ann": {"send_bytes": 1_000_000}})
    (bucket,) = buckets.of(ANN, "", "t", 0)
    assert bucket.opens_ms() <= 0
    bucket.take(0, 1, 3_000_000)
    rows.set({"user=ann": {"send_bytes": 10}})
    assert buckets.of(ANN, "", "t", 0)[0].opens_ms() <= 3_000, "who is given less does not pay for what he had"


def test_a_message_larger_than_a_seconds_worth_passes_and_is_waited_for() -> None:
    (bucket,) = Rows(user__ann={"send_bytes": 100}).buckets().of(ANN, "", "t", 0)
    bucket.take(0, 1, 1_000_000)
    assert bucket.opens_ms() == pytest.approx(10_000_000 - BURST_MS)


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 30)), min_size=1, max_size=60),
)
def test_what_passes_is_the_rate_and_one_seconds_worth(rate: int, requests: list[tuple[int, int]]) -> None:
    """In any span of time, whoever asks when and for how much: one request more than that at most."""
    (bucket,) = Rows(user__ann={"send_messages": rate}).buckets().of(ANN, "", "t", 0)
    now_ms, taken = 1_000, list[tuple[int, int]]()
    for pause_ms, count in requests:
        now_ms += pause_ms
        if bucket.opens_ms() <= now_ms:
            bucket.take(now_ms, count, 0)
            taken.append((now_ms, count))
    for first, (begin_ms, _) in enumerate(taken):
        total = 0
        for end_ms, count in taken[first:]:
            assert total <= rate * (end_ms - begin_ms + BURST_MS) / 1000 + 1e-6, "before the last one"
            total += count


@given(
    st.integers(1, 50),
    st.lists(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 300)), min_size=1, max_size=20), max_size=12),
    st.integers(0, 700),
)
def test_all_of_a_read_fit_at_once_only_if_each_would(
    rate: int, reads: list[list[tuple[int, int]]], pause_ms: int
) -> None:
    """And the bucket has the same left, by messages and by bytes."""
    limits = {"send_messages": rate, "send_bytes": 100 * rate}
    one_by_one = Rows(user__ann=limits).buckets().of(ANN, "", "t", 0)
    at_once = Rows(user__ann=limits).buckets().of(ANN, "", "t", 0)
    now_ms = 1_000
    for read in reads:
        now_ms += pause_ms
        count, size = (sum(each) for each in zip(*read, strict=True))
        for single, bulk in zip(one_by_one, at_once, strict=True):
            if not bulk.fits(now_ms, len(read), count, size):
                break
            for messages, bytes_of_one in read:
                assert single.opens_ms() <= now_ms
                single.take(now_ms, messages, bytes_of_one)
            bulk.take(now_ms, count, size, len(read))
            assert single.opens_ms() == pytest.approx(bulk.opens_ms())
            assert single.measure(1_000, 0) == pytest.approx(bulk.measure(1_000, 0))


@given(st.integers(1, 50), st.integers(1, 5))
def test_who_always_asks_gets_the_rate(rate: int, count: int) -> None:
    (bucket,) = Rows(user__ann={"send_messages": rate}).buckets().of(ANN, "", "t", 0)
    got = 0
    for now_ms in range(0, 60_000, 50):
        while bucket.opens_ms() <= now_ms:
            bucket.take(now_ms, count, 0)
            got += count
    assert 60 * rate <= got <= 61 * rate + count
