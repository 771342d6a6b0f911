"""Frames between nodes: what is encoded comes back, and whatever else arrives is a WireError."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.peer.wire import FRAME_MAX, VERSION, decode_message, encode_message, pack, unpack
from cluster.runtime.framing import FrameBuffer
from cluster.runtime.peer_frames import Kind, WireError
from raftlog.frame import genesis_entry, make_entry, tail_after
from raftlog.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    RequestVoteReply,
    TimeoutNow,
)
from raftlog.types import EMPTY_TAIL, Entry, EntryId, EntryType, NodeId

GROUP = 7
u62 = st.integers(0, 2**62)
nodes = st.integers(1, 2**16 - 1).map(NodeId)
ids = st.builds(EntryId, u62, st.integers(-1, 2**62))


@st.composite
def entries(draw: st.DrawFn) -> tuple[Entry, ...]:
    made: list[Entry] = []
    tail = tail_after(EMPTY_TAIL, genesis_entry(b"g", timestamp_ms=1, group_id=GROUP))
    for payload in draw(st.lists(st.binary(max_size=200), max_size=5)):
        made.append(
            make_entry(
                tail,
                term=draw(st.integers(tail.term, 9)),
                entry_type=EntryType.MESSAGES,
                payload=payload,
                timestamp_ms=2,
                group_id=GROUP,
                segment_size=1 << 20,
            )
        )
        tail = tail_after(tail, made[-1])
    return tuple(made)


messages = st.one_of(
    st.builds(RequestVote, nodes, nodes, u62, ids, st.booleans(), st.booleans()),
    st.builds(RequestVoteReply, nodes, nodes, u62, st.booleans(), st.booleans(), u62),
    st.builds(AppendEntries, nodes, nodes, u62, ids, u62, entries()),
    st.builds(AppendEntriesReply, nodes, nodes, u62, st.booleans(), st.integers(-1, 2**62), ids),
    st.builds(Heartbeat, nodes, nodes, u62, u62, u62),
    st.builds(HeartbeatReply, nodes, nodes, u62, u62, u62, st.booleans()),
    st.builds(TimeoutNow, nodes, nodes, u62),
    st.builds(InstallSnapshot, nodes, nodes, u62, u62, ids),
)


def through(data: bytes) -> tuple[int, list[Any], bytes]:
    source, ((start, stop),) = FrameBuffer(FRAME_MAX).feed(data)
    return unpack(source, start, stop)


@given(messages)
def test_a_message_comes_back(message: Message) -> None:
    kind, header, payload = through(b"".join(encode_message(message)))
    decoded = decode_message(kind, header, payload, GROUP)
    assert type(decoded) is type(message)
    assert decoded == message


@given(entries())
def test_entries_travel_as_the_bytes_of_the_log(made: tuple[Entry, ...]) -> None:
    message = AppendEntries(NodeId(1), NodeId(2), 9, EntryId(0, 0), 0, made)
    _, _, payload = through(b"".join(encode_message(message)))
    assert payload == b"".join(entry.header + entry.payload for entry in made)


def test_entries_of_another_group_are_refused() -> None:
    entry = genesis_entry(b"g", timestamp_ms=1, group_id=GROUP)
    kind, header, payload = through(
        b"".join(encode_message(AppendEntries(NodeId(1), NodeId(2), 1, EntryId(0, 0), 0, (entry,))))
    )
    with pytest.raises(WireError):
        decode_message(kind, header, payload, GROUP + 1)


def decode_anything(frame: bytes) -> None:
    try:
        kind, header, payload = unpack(frame, 0, len(frame))
        decode_message(kind, header, payload, GROUP)
    except WireError:
        pass


@given(st.binary(max_size=200))
@example(b"")
@example(bytes((16, VERSION, 255, 255)))
def test_bytes_are_a_message_or_a_wire_error(frame: bytes) -> None:
    decode_anything(frame)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(st.integers(0, 255), st.lists(values, max_size=8), st.binary(max_size=80))
def test_any_header_is_a_message_or_a_wire_error(kind: int, header: list[Any], payload: bytes) -> None:
    packed = msgpack.packb(header)
    decode_anything(bytes((kind, VERSION)) + len(packed).to_bytes(2, "big") + packed + payload)


@given(messages, st.data())
def test_a_damaged_message_is_a_message_or_a_wire_error(message: Message, data: st.DataObject) -> None:
    frame = bytearray(b"".join(encode_message(message))[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    decode_anything(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    decode_anything(bytes(frame))


@given(messages, st.data())
def test_no_number_out_of_its_range_gets_through(message: Message, data: st.DataObject) -> None:
    kind, header, payload = through(b"".join(encode_message(message)))
    at = data.draw(st.integers(0, len(header) - 1))
    beyond = 2**62 + 1
    header[at] = data.draw(st.sampled_from([-2, beyond, 2**63 - 2, 2**64 - 1, [beyond, 0], [0, beyond], [-1, 0]]))
    with pytest.raises(WireError):
        decode_message(kind, header, payload, GROUP)


@pytest.mark.parametrize("node", [0, 65536, True])
def test_what_is_no_node_id_does_not_get_through(node: Any) -> None:
    kind, header, payload = through(b"".join(encode_message(Heartbeat(NodeId(1), NodeId(2), 1, 0, 0))))
    with pytest.raises(WireError, match="from_id"):
        decode_message(kind, [node, *header[1:]], payload, GROUP)


@given(messages, st.data())
def test_no_field_that_is_no_number_gets_through(message: Message, data: st.DataObject) -> None:
    kind, header, payload = through(b"".join(encode_message(message)))
    header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.sampled_from(["1", None, 1.5, b"1", {}, -2]))
    with pytest.raises(WireError):
        decode_message(kind, header, payload, GROUP)


def test_another_version_is_named() -> None:
    frame = bytearray(pack(Kind.HELLO, [])[4:])
    frame[1] = VERSION + 1
    says = f"^peer protocol {VERSION + 1}, that of a newer RaftMQ; this node speaks {VERSION}$"
    with pytest.raises(WireError, match=says):
        unpack(bytes(frame), 0, len(frame))


def test_a_header_that_reaches_into_the_next_frame_is_refused() -> None:
    """Both lie in one buffer: the bytes are there, and are another frame's."""
    frame = pack(Kind.HELLO, ["c", 1, 2])[4:]
    short, buffer = len(frame) - 1, frame + pack(Kind.PING, [1])
    with pytest.raises(WireError, match="longer than its frame"):
        unpack(buffer, 0, short)
    assert unpack(buffer, 0, len(frame)) == (Kind.HELLO, ["c", 1, 2], b"")
