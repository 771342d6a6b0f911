"""Dead letters are asked of those groups of brokers that have some, and what a group refuses is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client.errors import NotFound, Refused
from raftmq.commands.messages.dlq import dead_letters
from raftmq_wire.codes import ResponseCode
from raftmq_wire.errors import LocalError
from raftmq_wire.queue_numbers import group_of, number_of


def client(groups: list[int], refusing: int = 0) -> Any:
    """A client of a cluster in which `groups` have two dead letters each; one of them refuses all questions."""

    def bound(offset: int) -> Any:
        def told(topic: str, queue: int) -> int:
            if group_of(queue) not in groups or group_of(queue) == refusing:
                raise Refused("the value is not possible", code=ResponseCode.INVALID_PARAMETER)
            return offset

        return told

    def pull(topic: str, queue: int, offset: int, *, as_stored: bool) -> Any:
        letter = SimpleNamespace(queue_id=queue, queue_offset=offset, store_ms=10 * offset + group_of(queue))
        return SimpleNamespace(messages=[letter], next_offset=offset + 1)

    def broker_groups(topic: str | None = None) -> list[int]:
        if topic is not None and not groups:
            raise NotFound(f"there is no topic {topic}")
        return [1, 2, 3] if topic is None else groups

    admin = SimpleNamespace(
        broker_groups=broker_groups, min_offset=bound(0), max_offset=bound(2), groups=lambda: ["readers"]
    )
    return SimpleNamespace(admin=admin, pull=pull)


def test_they_are_those_of_the_groups_that_have_some() -> None:
    letters, kept = dead_letters(client([1, 3]), "readers", None, 3)
    assert [(each.queue_id, each.queue_offset) for each in letters] == [(0, 0), (number_of(3, 0), 0), (0, 1)]
    assert kept == 4
    letters, kept = dead_letters(client([2]), "readers", {(2, 1), (1, 0)}, None)
    assert ([(group_of(each.queue_id), each.queue_offset) for each in letters], kept) == ([(2, 1)], 2)


def test_a_group_without_letters_has_none_and_one_that_is_not_there_is_named() -> None:
    assert dead_letters(client([]), "readers", None, None) == ([], 0)
    with pytest.raises(LocalError, match="there is no consumer group reeders"):
        dead_letters(client([]), "reeders", None, None)


def test_a_refusal_is_no_empty_list() -> None:
    with pytest.raises(Refused):
        dead_letters(client([1, 2], refusing=2), "readers", None, None)
