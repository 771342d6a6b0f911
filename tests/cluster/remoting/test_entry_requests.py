"""Request 700005: index and term of the entries that messages are in."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from raftmq_wire.message_format import decode_messages

CODE = 700_005


def ask(node: Any, *positions: int) -> Any:
    return node.ask(CODE, body=struct.pack(f">{len(positions)}Q", *positions)).answer


def runs(answer: Any) -> list[tuple[int, ...]]:
    assert answer.code == 0, answer
    return list(struct.iter_unpack(">QQI", answer.body))


def stored(node: Any, *bodies: bytes) -> list[int]:
    """Positions of messages that are in one entry."""
    return [next(decode_messages(data)).position for data in node.store("T", *bodies)]


def test_messages_of_one_entry_are_one_run(node: Any) -> None:
    node.create_topic("T")
    first, second = stored(node, b"a", b"b"), stored(node, b"c")
    node.create_topic("between")
    third = stored(node, b"d", b"e", b"f")
    assert runs(ask(node, *first, *second, *third)) == [(1, 1, 2), (2, 1, 1), (4, 1, 3)]
    assert runs(ask(node, first[1], third[0], third[0])) == [(1, 1, 1), (4, 1, 2)]
    assert runs(ask(node)) == []


def test_what_is_not_applied_or_not_here_is_refused(node: Any) -> None:
    node.create_topic("T")
    (position,) = stored(node, b"a")
    end = node.state.applied_mark.end_position
    assert runs(ask(node, end - 1)) == [(1, 1, 1)]
    answer = ask(node, position, end)
    assert (answer.code, answer.remark) == (14, f"node 2 has not applied position {end} yet")
    node.log_begins_at = position + 1
    answer = ask(node, position)
    assert (answer.code, "node 2 does not reach down" in answer.remark) == (22, True)
    node.is_fenced = True
    assert ask(node, end - 1).code == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (bytes(9), "has 9 bytes"),
        (bytes(8 * 1025), "at most 1024 positions"),
        (struct.pack(">QQ", 2, 1), "do not ascend"),
    ],
)
def test_other_bodies_are_refused(node: Any, body: bytes, said: str) -> None:
    answer = node.ask(CODE, body=body).answer
    assert (answer.code, said in answer.remark) == (29, True)
