"""Both kernels add the same plain sends to an entry, byte for byte, and stop at the same send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.replication import message_batch
from statemachine.payload import RowKind
from tests.support.kernels import Pair

V4, V6 = b"\x0a\x00\x00\x02\x00\x00\x2a\x9f", bytes(range(16)) + b"\x00\x00\x00\x07"
MODULE = ("add_messages", "add_plain", "QueueCursor")
"""Names that the builder finds in its module."""
RECORDS = ("BatchMessage", "Send", "TopicSlot")
KINDS = [RowKind.NORMAL, RowKind.RETRY, RowKind.DELIVERED, RowKind.DEAD_LETTER]


class One(NamedTuple):
    """The fields of a send that differ between the examples."""

    strict: bool = False
    queue_id: int = 0
    kind: RowKind = RowKind.NORMAL
    born_host: bytes = V4
    flag: int = 0
    body: bytes = b"b"
    properties: bytes = b""
    tag_hash: int = 0
    unique_key: str = "K"
    session: bytes = b"s" * 16
    sequence: int = 1
    batch: int = 0


PLAIN = One()
sends = st.builds(
    One,
    st.sampled_from([False] * 7 + [True]),
    st.sampled_from([0, 0, 1, 1, 2, -1]),
    st.sampled_from([RowKind.NORMAL] * 5 + KINDS),
    st.sampled_from([V4] * 6 + [V6]),
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=30),
    st.sampled_from([b"", b"KEYS\x01a b\x02", b"TAGS\x01t\x02KEYS\x01c\x02", b"XKEYS\x01no\x02"]),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=4),
    st.sampled_from([b"", b"s" * 16, b"t" * 16]),
    st.integers(1, 9),
    st.integers(0, 3),
)


@pytest.fixture(scope="module")
def names(both_kernels: Callable[[str], Pair]) -> dict[str, Pair]:
    return {name: both_kernels(name) for name in (*MODULE, *RECORDS)}


def added_by(names: dict[str, Any], some: list[One], at: int, store_host: bytes, *, index: bool) -> tuple[Any, ...]:
    """Returns where one call stops, or its error, and all that it added."""
    with pytest.MonkeyPatch.context() as patched:
        for name in MODULE:
            patched.setattr(message_batch, name, names[name])

        def cursor(topic_id: int, queue_id: int) -> Any:
            return names["QueueCursor"](topic_id, queue_id, 100)

        plain, strict = (
            names["TopicSlot"]("T", number, 2, 2, 6, ("retry", "strict")[number], cursor) for number in (0, 1)
        )
        made = [send_of(names, strict if one.strict else plain, one) for one in some]
        builder = message_batch._Builder(1 << 40, 1_700_000_000_001, store_host, index)
        offsets: list[int] = []
        positions: list[Any] = []
        try:
            stopped: Any = names["add_plain"](builder, made, at, offsets, positions)
        except IndexError as error:
            stopped = str(error)
    touched = [
        (one.topic_id, one.queue_id, one.base, one.next_offset, one.bytes, one.items, kind)
        for one, kind in builder.touched
    ]
    state = (builder.position, builder.parts, bytes(builder.keys), builder.sessions, builder.unique)
    return stopped, offsets, positions, touched, state


def send_of(names: dict[str, Any], slot: Any, one: One) -> Any:
    message = names["BatchMessage"](one.flag, one.body, one.properties, one.tag_hash, 0, one.unique_key.encode())
    return names["Send"](
        connection=None, size=1, origin=None, oneway=False, slot=slot, queue_id=one.queue_id, flag=one.flag, sys_flag=1,
        born_ms=77, born_host=one.born_host, reconsume_times=2, body=one.body, properties=one.properties,
        tag_hash=one.tag_hash, unique_key=one.unique_key, kind=one.kind, producer_id=one.session, sequence=one.sequence,
        low_sequence=1, batch=(message,) * one.batch, received_ms=0,
    )  # fmt: skip


def alike(names: dict[str, Pair], some: list[One], at: int, store_host: bytes, *, index: bool) -> tuple[Any, ...]:
    native = added_by({name: pair.native for name, pair in names.items()}, some, at, store_host, index=index)
    assert native == added_by({name: pair.python for name, pair in names.items()}, some, at, store_host, index=index)
    return native


@given(st.lists(sends, max_size=6), st.integers(0, 2), st.sampled_from([V4, V4, V4, V6]), st.booleans())
@example([PLAIN, PLAIN._replace(batch=2), PLAIN._replace(born_host=V6)], 0, V4, True)
@example([PLAIN, PLAIN._replace(queue_id=2)], 0, V4, True)
def test_any_sends_are_added_alike(
    names: dict[str, Pair], some: list[One], at: int, store_host: bytes, index: bool
) -> None:
    alike(names, some, at, store_host, index=index)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN._replace(strict=True),
        PLAIN._replace(born_host=V6),
        PLAIN._replace(kind=RowKind.DELIVERED),
        PLAIN._replace(kind=RowKind.DEAD_LETTER),
    ],
)
def test_what_is_not_plain_ends_the_run(names: dict[str, Pair], other: One) -> None:
    stopped, offsets, *_ = alike(names, [PLAIN, PLAIN, other, PLAIN], 0, V4, index=True)
    assert (stopped, offsets) == (2, [100, 101])


def test_a_queue_that_the_topic_lacks_is_an_error(names: dict[str, Pair]) -> None:
    for queue_id in (-1, 2):
        assert (
            alike(names, [PLAIN._replace(queue_id=queue_id)], 0, V4, index=True)[0]
            == f"topic T has no queue {queue_id}"
        )
