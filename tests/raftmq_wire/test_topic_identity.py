"""The identity of a topic: its text, and which kept offset is another topic's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq_wire.topic_identity import TopicIdentity, parse_identity, why_another
from tests.support.rows import each_row

HERE = TopicIdentity("11111111-2222-4333-8444-555555555555", 0, 7)
IDENTITIES = st.builds(TopicIdentity, st.uuids().map(str), st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))


@given(IDENTITIES)
def test_text_and_back(identity: TopicIdentity) -> None:
    assert parse_identity(str(identity)) == identity
    assert why_another(identity, identity) == ""


@each_row("text", ["", "7", f"{HERE} ", str(HERE).upper() + "A", "x/0/7", f"{HERE.cluster}/0/-7"])
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no topic's identity"):
        parse_identity(text)


def test_each_part_is_named() -> None:
    other = "99999999-2222-4333-8444-555555555555"
    assert other in why_another(HERE, HERE._replace(cluster=other))
    assert HERE.cluster in why_another(HERE, HERE._replace(cluster=other))
    assert why_another(HERE, HERE._replace(group=3)).startswith("it counts in a topic of group 0")
    assert why_another(HERE, HERE._replace(topic_id=9)).startswith("it counts in the topic with id 7")


def test_an_unknown_one_says_nothing() -> None:
    assert why_another(None, HERE) == why_another(HERE, None) == ""
