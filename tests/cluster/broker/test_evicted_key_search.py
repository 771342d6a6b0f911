"""Queries by key whose older messages are in the tier: whether the answer says that there may be more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cluster.broker.evicted.evicted_key_search import complete
from cluster.broker.reads.message_lookup import KeyQuery, QueryResult
from cluster.broker.refusal import Refused
from tests.support.rows import each_row

QUERY = KeyQuery("k", unique=False, count_max=3)


def messages(*positions: int) -> list[Any]:
    return [SimpleNamespace(message=SimpleNamespace(position=position)) for position in positions]


class Tier:
    """A tier that finds what it is made with."""

    def __init__(self, found: QueryResult | Exception) -> None:
        self._found = found

    def find(self, topic: Any, query: Any, done: Callable[[QueryResult | Exception], None]) -> None:
        done(self._found)


def told(here: QueryResult, tier: Any, evicted: bool = True) -> Any:
    """The positions and whether there may be more, or None if nobody knows."""
    answers: list[QueryResult | Refused] = []
    state: Any = SimpleNamespace(kept=SimpleNamespace(position=0), sweep=None, trim_position=100 * evicted)
    topic: Any = None
    complete(state, tier, topic, QUERY, here, answers.append)
    (answer,) = answers
    if isinstance(answer, Refused):
        return None
    return [stored.message.position for stored in answer.messages], answer.may_miss


@each_row(
    ("here", "stopped", "tier", "expected"),
    [
        ([9], False, QueryResult(messages(5, 4), None, False), ([9, 5, 4], False)),
        ([9], False, QueryResult(messages(9, 5), None, False), ([9, 5], False)),
        ([9], False, QueryResult(messages(5, 4, 3), None, False), ([9, 5, 4], True)),
        ([9], False, QueryResult(messages(5), None, True), ([9, 5], True)),
        ([9, 8, 7], False, QueryResult([], None, False), ([9, 8, 7], True)),
        ([9], True, QueryResult(messages(5), None, False), ([9], True)),
        ([9], False, OSError("away"), ([9], True)),
        ([9], False, None, ([9], True)),
        ([], False, None, None),
    ],
)
def test_what_may_be_missing_is_said(here: list[int], stopped: bool, tier: Any, expected: Any) -> None:
    old = tier if tier is None else Tier(tier)
    assert told(QueryResult(messages(*here), None, stopped), old) == expected


def test_without_evicted_messages_the_log_has_all() -> None:
    assert told(QueryResult(messages(9, 8, 7), None, False), None, evicted=False) == ([9, 8, 7], False)
