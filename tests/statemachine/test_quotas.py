"""Quotas as rows of the log: whom they limit, and how they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.access.quotas import QUOTAS_MAX, ROWS_PER_COMMAND, Quota, SetQuotas, Subject, parse_subject
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.truth import JournalNames
from tests.support.rows import each_row
from tests.support.truth_kit import BrokerLog, copy_all

NewLog = Callable[[], Any]


@pytest.fixture
def broker(new_log: NewLog) -> BrokerLog:
    return BrokerLog(new_log())


def set_(broker: BrokerLog, *rows: tuple[str, dict[str, int] | None], now_ms: int = 7) -> Any:
    return broker.one(SetQuotas(list(rows), now_ms, "ann"))


@each_row(
    ("text", "subject"),
    [
        ("user=a.b@c", Subject(user="a.b@c")),
        ("user=*", Subject(user="*")),
        ("topic=orders,user=ann", Subject(user="ann", topic="orders")),
        ("user=*,topic=orders", Subject(user="*", topic="orders")),
        ("address=10.0.0.7", Subject(address="10.0.0.7")),
        ("address=0:0::1", Subject(address="::1")),
        ("topic=%RETRY%g", Subject(topic="%RETRY%g")),
    ],
)
def test_subjects(text: str, subject: Subject) -> None:
    assert parse_subject(text) == subject
    assert parse_subject(str(subject)) == subject


@each_row(
    "text",
    [
        *("", "ann", "user", "user=", "user=a b", "client=x", "user=a,user=b", "user=a,", "address=host"),
        *("address=10.0.0.7,topic=t", "address=1.2.3.4,user=a", "topic=a/b", "topic=" + "x" * 256, "user=a,topic=*"),
    ],
)
def test_what_is_no_subject_is_refused_in_words(broker: BrokerLog, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_subject(text)
    assert set_(broker, ("topic=t", {"send_bytes": 1}), (text, {"send_bytes": 1})).code == "invalid"
    assert broker.state.quotas.by_subject == {}


@given(st.text(max_size=40))
def test_whatever_is_a_subject_is_one_in_its_own_words(text: str) -> None:
    try:
        subject = parse_subject(text)
    except ValueError:
        return
    assert parse_subject(str(subject)) == subject


def test_rows_change_as_one_and_stay(broker: BrokerLog) -> None:
    assert set_(broker, ("user=ann", {"send_messages": 5, "send_bytes": 9}), ("topic=t", {"x": 1})).value == 2
    assert set_(broker, ("user=ann", {"send_bytes": 9, "send_messages": 5}), now_ms=8).value == 0, "it is so already"
    assert set_(broker, ("topic=t", None), ("user=*", {"send_bytes": 3}), ("topic=gone", None), now_ms=9).value == 2
    known = {
        "user=ann": Quota({"send_bytes": 9, "send_messages": 5}, 7, "ann"),
        "user=*": Quota({"send_bytes": 3}, 9, "ann"),
    }
    assert broker.state.quotas.by_subject == known
    broker.restart()
    assert broker.state.quotas.by_subject == known


@each_row("limits", [{}, {"a": 0}, {"a": -1}, {"a": 2**62 + 1}, {"A": 1}, {"a": True}, {"a": "1"}])
def test_limits_that_are_none(broker: BrokerLog, limits: dict[str, Any]) -> None:
    assert set_(broker, ("user=ann", limits)).code == "invalid"


def test_there_is_a_most_of_them(broker: BrokerLog) -> None:
    one = {"send_bytes": 1}
    rows = [(f"topic=t{n}", one) for n in range(QUOTAS_MAX)]
    for at in range(0, QUOTAS_MAX, ROWS_PER_COMMAND):
        assert set_(broker, *rows[at : at + ROWS_PER_COMMAND]).ok
    refused = set_(broker, ("topic=t0", {"send_bytes": 2}), ("topic=new", one))
    assert (refused.code, refused.value) == (
        "refused",
        f"a cluster has at most {QUOTAS_MAX} quotas; nothing was changed",
    )
    assert broker.state.quotas.by_subject["topic=t0"].limits == one
    assert set_(broker, ("topic=t0", None), ("topic=new", one)).ok


def test_other_groups_copy_them_also_those_from_before(broker: BrokerLog, new_log: NewLog) -> None:
    set_(broker, ("user=ann", {"send_bytes": 9}), ("topic=t", {"send_bytes": 1}))
    broker.one(AddBrokerGroup(2, "raftmq-g02", ("raftmq", 3)))
    while not broker.state.truth_journal.is_ready:
        broker.one(JournalNames(1))
    second = BrokerLog(new_log(), 2)
    copy_all(broker, second)
    assert second.state.quotas.by_subject == broker.state.quotas.by_subject != {}
    set_(broker, ("topic=t", None), ("user=ann", {"send_bytes": 8}))
    copy_all(broker, second)
    assert (
        second.state.quotas.by_subject
        == broker.state.quotas.by_subject
        == {"user=ann": Quota({"send_bytes": 8}, 7, "ann")}
    )
