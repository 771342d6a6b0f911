"""A batch that the kernel divides has the messages that `Sends.split_batch` makes of it in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.broker.refusal import Refused
from raftmq_wire import kernel
from raftmq_wire.message_format import BatchItem, build_batch
from tests.support import client_frames
from tests.support.intake_kit import Node
from tests.support.kernels import native_kernel
from tests.support.rows import each_row

MESSAGE_FIELDS = ["flag", "body", "properties", "tag_hash", "key_hash", "unique_key", "head"]
KEY = b"UNIQ_KEY\x01K\x02"


@pytest.fixture(autouse=True, scope="module")
def _native() -> None:
    native_kernel()
    if kernel.NAME != "native":
        pytest.skip(kernel.WHY)


def divided(body: bytes, *, dedup: str = "retry") -> tuple[bool, Any]:
    """Returns True if the kernel takes the batch; and the messages, or why it is refused: the same both ways."""
    short, long = Node(), Node().in_python()
    slot = short.slots["strict" if dedup == "strict" else "orders"]
    found = [outcome(node, slot, body) for node in (short, long)]
    assert found[0] == found[1]
    return short.sends._plain_batches.split(body) is not None, found[0]


def outcome(node: Node, slot: Any, body: bytes) -> Any:
    try:
        messages = node.sends.split_batch(slot, body, 0)
    except Refused as refused:
        return str(refused), node.sends.new_key()
    return [[getattr(message, name) for name in MESSAGE_FIELDS] for message in messages], node.sends.new_key()


def batch(*properties: bytes, body: bytes = b"b") -> bytes:
    return build_batch([BatchItem(number - 1, body, one) for number, one in enumerate(properties)])


@pytest.mark.parametrize(
    "body",
    [
        batch(KEY),
        batch(KEY + b"WAIT\x01true\x02", b"TAGS\x01t\x02" + KEY, b"KEYS\x01a b\x02" + KEY, body=b""),
        batch(KEY[:-1], KEY + b"TAGS\x01\xe7\xb4\x85\x02", KEY + b"TAGS\x01" + b"t" * 99),
        batch(*[KEY] * 1000),
    ],
)
def test_what_the_kernel_divides(body: bytes) -> None:
    taken, (messages, _) = divided(body)
    assert taken
    assert messages


@each_row(
    "body",
    [
        b"",
        batch(KEY)[:-1],
        batch(KEY) + b"x",
        batch(KEY, b""),  # without a key: it is given one
        batch(KEY, b"UNIQ_KEY\x01\x02"),
        batch(KEY, KEY + b"DELAY\x013\x02"),
        batch(KEY, KEY + b"TIMER_DELAY_SEC\x013\x02"),
        batch(KEY, KEY + b"TRAN_MSG\x01true\x02"),
        batch(KEY, KEY + b"POP_CK\x01a\x02"),
        batch(KEY, KEY + b"a\x01" + b"b" * 32_700),
        batch(*[KEY] * 4097),
    ],
    ids=["empty", "cut", "longer", "key", "empty key", "delay", "timer", "half", "pop", "properties", "many"],
)
def test_what_it_leaves_to_python(body: bytes) -> None:
    assert not divided(body)[0]


def test_a_strict_topic_needs_hashes_of_keys() -> None:
    _, (messages, _) = divided(batch(KEY), dedup="strict")
    assert messages[0][4] != 0


items = st.builds(
    BatchItem,
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=30),
    st.tuples(client_frames.plain_properties | client_frames.odd_properties, st.sampled_from(["", KEY.decode()])).map(
        lambda parts: (parts[1] + parts[0]).encode()
    ),
)


@given(st.lists(items, max_size=4).map(build_batch), st.binary(max_size=3))
@example(batch(KEY + b"xUNIQ_KEY\x01no\x02"), b"")
def test_both_ways_end_alike(body: bytes, rest: bytes) -> None:
    divided(body + rest)
