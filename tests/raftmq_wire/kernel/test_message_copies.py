"""Copies of stored messages are the same with both kernels, and none is made of what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.broker import message_copies as copies_module
from cluster.broker.message_copies import copied
from raftmq_wire.message_format import Message, decode_message, encode_message
from statemachine.payload import ITEM
from tests.support.kernels import Pair
from tests.support.rows import each_row

RECORDS = ("BatchMessage", "MessageHead")
V4, V6 = ("10.0.0.2", 50000), ("2001:db8::7", 1)


def message_of(drawn: dict[str, Any]) -> Message:
    return Message(**drawn)


properties = st.lists(
    st.sampled_from([b"UNIQ_KEY\x01k\x02", b"UNIQ_KEY\x01", b"XUNIQ_KEY\x01no\x02", b"TAGS\x01t\x02", b"\x02", b"a"]),
    max_size=4,
).map(b"".join)
messages = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["RAFTMQ_SYS_STAGED", "ü" * 64]),
        "body": st.binary(max_size=40),
        "properties": properties,
        "flag": st.integers(-(2**31), 2**31 - 1),
        "sys_flag": st.integers(0, 0x3F),
        "born_ms": st.integers(0, 2**63 - 1),
        "born_host": st.sampled_from([V4, V6]),
        "store_host": st.sampled_from([V4, V6]),
        "reconsume_times": st.integers(0, 2**31 - 1),
    }
).map(message_of)
MESSAGE = Message("RAFTMQ_SYS_STAGED", b"body", b"UNIQ_KEY\x01k\x02TAGS\x01t\x02", flag=7, born_ms=5, born_host=V4)


@pytest.fixture(scope="module")
def kernels(both_kernels: Callable[[str], Pair]) -> dict[str, Pair]:
    return {name: both_kernels(name) for name in ("copies_of", *RECORDS)}


def row_of(parts: list[bytes], tag_hash: int = 9) -> tuple[bytes, bytes]:
    """Returns the stored bytes one behind the other, and the items."""
    return b"".join(parts), b"".join([ITEM.pack(0, len(part), crc32c(part), tag_hash, 0) for part in parts])


def copies_by(kernels: dict[str, Any], stored: bytes, items: bytes) -> list[tuple[Any, ...]]:
    with pytest.MonkeyPatch.context() as patched:
        for name in RECORDS:
            patched.setattr(copies_module, name, kernels[name])
        return [fields(copy) for copy in kernels["copies_of"](stored, items)]


def fields(copy: Any) -> tuple[Any, ...]:
    head = copy.head
    return (
        *(copy.flag, copy.body, copy.properties, copy.tag_hash, copy.key_hash, copy.unique_key),
        *(head.sys_flag, head.born_ms, head.born_host, head.reconsume_times, head.prepared_position),
    )


def alike(kernels: dict[str, Pair], stored: bytes, items: bytes) -> list[tuple[Any, ...]]:
    native = copies_by({name: pair.native for name, pair in kernels.items()}, stored, items)
    assert native == copies_by({name: pair.python for name, pair in kernels.items()}, stored, items)
    return native


@given(st.lists(messages, max_size=4), st.integers(-(2**31), 2**31 - 1))
def test_copies_have_head_and_content_of_their_messages(
    kernels: dict[str, Pair], wanted: list[Message], tag_hash: int
) -> None:
    found = alike(kernels, *row_of([encode_message(message) for message in wanted], tag_hash))
    expected = [fields(copied(decode_message(encode_message(message))[0], message.properties)) for message in wanted]
    assert found == [(*one[:3], tag_hash, *one[4:]) for one in expected]


@given(messages, st.data())
def test_what_is_damaged_is_copied_by_neither(kernels: dict[str, Pair], message: Message, data: st.DataObject) -> None:
    """A byte is another, or bytes are missing at the end; the message before it is copied."""
    whole = encode_message(message)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:at] + bytes((whole[at] ^ data.draw(st.integers(1, 255)),)) + whole[at + 1 :]
    else:
        damaged = whole[:at]
    stored, _ = row_of([whole, damaged])
    _, items = row_of([whole, whole])
    assert alike(kernels, stored, items)[:1] == alike(kernels, *row_of([whole]))


@each_row("at", [0, 4, 8, 84, 100, 101], ids=["size", "magic", "crc", "body size", "topic size", "topic"])
def test_a_message_that_cannot_be_decoded_ends_the_copies(kernels: dict[str, Pair], at: int) -> None:
    whole = encode_message(MESSAGE)
    assert whole[92:93] == bytes((len(MESSAGE.topic),))
    at = at - 8 if at >= 100 else at
    damaged = whole[:at] + bytes((whole[at] ^ 0xFF,)) + whole[at + 1 :]
    stored, items = row_of([whole, damaged, whole])
    assert len(alike(kernels, stored, items)) == 1


@example([MESSAGE, MESSAGE._replace(born_ms=6), MESSAGE])
@given(st.lists(messages, min_size=2, max_size=3))
def test_each_copy_has_its_own_head(kernels: dict[str, Pair], wanted: list[Message]) -> None:
    """Equal neighbours may share one; others must not."""
    found = alike(kernels, *row_of([encode_message(message) for message in wanted]))
    assert [one[7] for one in found] == [message.born_ms for message in wanted]
