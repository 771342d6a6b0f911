"""The kernel's short way of a send ends where the long way of Python ends, or is not taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.broker.sends.closed_connections import ClosedConnections
from cluster.broker.sends.send_outcomes import SendOutcomes
from cluster.flow.gate import ITSELF, SEND_BYTES_MIN, GateRequest, Holder
from cluster.remoting.connection.frame import Frame
from cluster.remoting.handlers.send import make_intake
from cluster.remoting.handlers.send_reply import SendReplyWriter
from cluster.replication import message_batch
from cluster.replication.message_batch import Built, Send
from cluster.replication.send_identity import Identity
from cluster.runtime.framing import FrameBuffer
from raftmq_wire import kernel
from raftmq_wire.codec import decode_header
from raftmq_wire.kernel import TWINS
from raftmq_wire.message_format import BatchItem, build_batch
from tests.support.intake_kit import INCARNATION, STORE_HOST, Node, frame, request
from tests.support.kernels import native_kernel
from tests.support.rows import each_row

FIELDS = [
    "size",
    "oneway",
    "queue_id",
    "flag",
    "sys_flag",
    "born_ms",
    "born_host",
    "reconsume_times",
    "body",
    "properties",
    "tag_hash",
    "unique_key",
    "kind",
    "producer_id",
    "sequence",
    "low_sequence",
    "received_ms",
    "ack",
    "prepared_position",
    "schedule",
    "failure",
    "effect",
    "due_ms",
    "carried",
    "done",
]
MESSAGE_FIELDS = ["flag", "body", "properties", "tag_hash", "key_hash", "unique_key", "head"]


@pytest.fixture(autouse=True, scope="module")
def _native() -> None:
    """Python has no short way: skips the module without the native kernel."""
    native_kernel()
    if kernel.NAME != "native":
        pytest.skip(kernel.WHY)


def fields(send: Send) -> dict[str, Any]:
    found = {name: getattr(send, name) for name in FIELDS}
    found["slot"] = send.slot.name
    found["batch"] = [[getattr(message, name) for name in MESSAGE_FIELDS] for message in send.batch]
    return found


def compared(data: bytes) -> int:
    """Returns the number of frames of one read that the kernel takes, after both ways were found to end alike."""
    short, long = Node(), Node().in_python()
    _, frames = FrameBuffer(1 << 24).feed(data)
    taken = short.intake.take(short.path, data, frames, 0)
    for start, stop in frames[:taken]:
        long.long_way(data, start, stop)
    assert [fields(send) for send in short.queue.waiting] == [fields(send) for send in long.queue.waiting]
    assert not long.refused
    for send, (start, stop) in zip(short.queue.waiting, frames, strict=False):
        origin = send.origin
        assert type(origin) is Frame
        assert (origin.path, origin.body, origin.size) == (short.path, send.body, stop - start - 4)
        assert origin.header.opaque == decode_header(0, origin.header_bytes).opaque
    assert short.path.in_flight.bytes == long.path.in_flight.bytes
    assert short.gate.sends.bytes == long.gate.sends.bytes
    assert short.session_max == long.session_max
    assert short.session.issue() == long.session.issue()
    return taken


def test_plain_sends_are_taken() -> None:
    many = b"".join(request(opaque=at, ext={"e": str(at % 8)}) for at in range(100))
    assert compared(many) == 100


@each_row(
    "data",
    [
        request(ext={"e": 1, "f": 8, "g": 5, "h": -3, "j": 2, "m": False}),  # numbers, as C++ writes them
        request(ext={"e": "-1"}),
        request(ext={"j": None, "m": None, "l": None}),
        request(ext=dict.fromkeys("acdefghjkmn", ...)),
        request(properties=""),
        request(properties="TAGS\x01a b\x02KEYS\x01k1 k2\x02"),
        request(properties="UNIQ_KEY\x01é漢\x02TAGS\x01紅\x02", ascii_only=False),
        request(properties="a\x01DELAY\x02TAGS\x01\x02"),
        request(properties="xTAGS\x01a\x02TAGS\x01b\x02TAGS\x01c\x02UNIQ_KEY\x01K"),
        request(properties="UNIQ_KEY\x01\x02TAGS\x01\x02"),
        request(properties='q\x01"\\/\b\f\n\r\t\x02'),
        request(spaces=True, remark=None),
        request(ext={"b": "l" * 200}),
        request(body=b""),
        request(
            "", build_batch([BatchItem(7, b"one", b"TAGS\x01t\x02"), BatchItem(-1, b"", b"UNIQ_KEY\x01U\x02")]),
            code=320, ext={"m": "true"},
        ),
    ],
)  # fmt: skip
def test_what_is_plain(data: bytes) -> None:
    assert compared(data) == 1


DOUBLE = b'{"code":310,"code":310,"extFields":{"b":"orders"}}'


@each_row(
    "data",
    [
        request(code=10),
        request(code="310"),
        request(flag=2),
        request(flag=1),
        request(opaque=1 << 31),
        request(version=1 << 31),
        request(language=3),
        request(ext={"b": "missing"}),
        request(ext={"b": "closed"}),
        request(ext={"b": "strict"}),
        request(ext={"b": "loose"}),
        request(ext={"b": "quick"}),
        request(ext={"b": "%RETRY%sales"}),
        request(ext={"b": "SCHEDULE_TOPIC_XXXX"}),
        request(ext={"b": ""}),
        request(ext={"b": ...}),
        request(ext={"e": "8"}),
        request(ext={"e": "2147483648"}),
        request(ext={"f": "-1"}),
        request(ext={"g": "-1"}),
        request(ext={"g": "9" * 19}),
        request(ext={"h": "1.0"}),
        request(ext={"j": "-1"}),
        request(ext={"m": "yes"}),
        request(ext={"l": "3"}),
        request(ext={"raftmqPid": "00" * 16, "raftmqSeq": "1"}),
        request(ext={"z": {"a": 1}}),
        request(properties="DELAY\x013\x02"),
        request(properties="TIMER_DELAY_SEC\x013\x02"),
        request(properties="TRAN_MSG\x01true\x02"),
        request(properties="POP_CK\x011\x02"),
        request(properties="CORRELATION_ID\x01i\x02REPLY_TO_CLIENT\x01c\x02"),
        request(properties="ACK_LEVEL\x01all\x02"),
        request(properties="WAIT\x01false\x02"),
        request(properties="UNIQ_KEY\x01\ud800\x02"),
        request(properties="é"),  # escaped beyond ASCII
        request(properties="p\x01" + "v" * 32_700 + "\x02"),
        request(body=bytes((4 << 20) + 1)),
        request("", b"", code=320, ext={"m": "true"}),
        request("", build_batch([BatchItem(0, b"b", b"DELAY\x011\x02")]), code=320, ext={"m": "true"}),
        request("", build_batch([BatchItem(0, b"b", b"")])[:-1], code=320, ext={"m": "true"}),
        frame(DOUBLE, b""),
        frame(DOUBLE[12:], b""),
        frame(b'{"code":310,"extFields":{"b":"orders","b":"orders"}}', b""),
        frame(b'{"code":310,"extFields":{"b":"orders","i":"\xff"}}', b""),
        frame(b'{"code":310,"extFields":{"b":"orders","e":"01"}}', b""),
        frame(b'{"code":310,"extFields":{"b":"orders"}} x', b""),
        frame(b'{"code":310,"extFields":{"b":"orders"' + b" " * (1 << 20) + b"}}", b""),
        frame(b"", b""),
        b"\0\0\0\4\0\0\0\1",
        b"\0\0\0\3\0\0\0",
    ],
)
def test_what_is_left_to_python(data: bytes) -> None:
    assert compared(data) == 0


def test_limits_end_the_short_way() -> None:
    node = Node()
    data = request() * 3
    _, frames = FrameBuffer(1 << 24).feed(data)
    size = frames[0][1] - frames[0][0] - 4
    node.gate.hold(node.gate.holder(""), node.limits.node_inflight_bytes_max - 2 * size, ITSELF, GateRequest.OWN)
    assert node.intake.take(node.path, data, frames, 0) == 2
    assert node.gate.sends.bytes == node.limits.node_inflight_bytes_max
    assert node.path.in_flight.bytes == 2 * size


def test_bytes_of_room_bound_the_number_of_sends() -> None:
    """A limit of requests gives the kernel as many bytes as so many of the smallest sends have."""
    node = Node()
    node.slots["t"] = node.slots["orders"]
    smallest = frame(b'{"code":310,"extFields":{"b":"t"}}', b"")
    data = smallest * 3
    _, frames = FrameBuffer(1 << 24).feed(data)
    assert node.intake.take(node.path, data, frames, 0) == 3
    assert SEND_BYTES_MIN <= node.gate.sends.bytes // 3 < 2 * SEND_BYTES_MIN
    node.gate.room = lambda holder, user: 2 * SEND_BYTES_MIN  # type: ignore[method-assign]
    intake = make_intake(node.as_proposals, node.sends, node.retries, node.limits)
    assert intake.take(node.path, data, frames, 0) == 1, "never more than 2; what is left is asked one by one"


def test_room_is_asked_once_and_only_for_plain_sends() -> None:
    """A send that goes the long way pays for no short one."""
    node = Node()
    asked: list[tuple[Holder, int]] = []

    def room(holder: Holder, user: int) -> int:
        asked.append((holder, user))
        return 1 << 20

    node.gate.room = room  # type: ignore[method-assign]
    intake = make_intake(node.as_proposals, node.sends, node.retries, node.limits)
    named = request(ext={"raftmqPid": "00" * 16, "raftmqSeq": "1"})
    for data, taken in ((named * 2, 0), (request() * 3 + named, 3)):
        _, frames = FrameBuffer(1 << 24).feed(data)
        assert intake.take(node.path, data, frames, 0) == taken
    assert asked == [(node.path.in_flight, 0)]


def test_the_retry_of_an_unanswered_send_goes_the_long_way() -> None:
    node = Node()
    node.retries.remember(0, "orders", "AC10", b"hello", Identity(INCARNATION + bytes(8), 1, 1), 0)
    data = request(properties="UNIQ_KEY\x01other\x02") + request()
    _, frames = FrameBuffer(1 << 24).feed(data)
    assert node.intake.take(node.path, data, frames, 0) == 1


def test_without_a_session_or_behind_a_new_term_all_go_the_long_way() -> None:
    data = request()
    _, frames = FrameBuffer(1 << 24).feed(data)
    new_term, new_client = Node(), Node()
    new_term.session_max.clear()
    new_client.path.session = None
    for node in (new_term, new_client):
        assert node.intake.take(node.path, data, frames, 0) == 0


names = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "TIMER_OUT_MS", "TRAN_MSG", "POP_CK", "REPLY_TO_CLIENT", "", "a", "é"]
)
properties = st.lists(st.tuples(names, st.text(max_size=8))).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
)
values: st.SearchStrategy[Any] = st.one_of(
    st.integers(-5, 9).map(str),
    st.integers(-(1 << 33), 1 << 33),
    st.sampled_from([None, True, False, "true", "false", "", "1e3", 1.5, [], {}]),
    st.text(max_size=3),
)
requests = st.builds(
    request,
    st.one_of(properties, st.text(max_size=12)),
    st.binary(max_size=20),
    ascii_only=st.booleans(),
    spaces=st.booleans(),
    code=st.sampled_from([310, 310, 310, 320, 10, 11]),
    ext=st.dictionaries(st.sampled_from([*"abcdefghijklmnz", "raftmqSeq", "zz"]), values, max_size=3),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
)


@given(st.lists(requests, min_size=1, max_size=4))
def test_any_request_ends_alike(each: list[bytes]) -> None:
    compared(b"".join(each))


@given(requests, st.lists(st.tuples(st.integers(8, 400), st.integers(0, 255)), max_size=3))
@example(request(), [(12, 0x22)])
def test_any_bytes_end_alike(whole: bytes, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(whole)
    for at, byte in flips:
        damaged[min(at, len(damaged) - 1)] = byte
    compared(bytes(damaged))


messages = st.lists(
    st.builds(BatchItem, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=9), properties.map(str.encode)),
    max_size=4,
)


@given(messages, st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(0, 255))))
def test_any_batch_ends_alike(items: list[BatchItem], flip: tuple[int, int] | None) -> None:
    body = bytearray(build_batch(items))
    if flip is not None and body:
        body[min(flip[0], len(body) - 1)] = flip[1]
    compared(request("", bytes(body), code=320, ext={"m": "true"}))


# --- what becomes of them ---------------------------------------------------------------------------------------------


def taken_by(node: Node, data: bytes) -> list[Send]:
    _, frames = FrameBuffer(1 << 24).feed(data)
    assert node.intake.take(node.path, data, frames, 0) == len(frames)
    return list(node.queue.waiting)


def built_of(sends: list[Send]) -> Built:
    """Twice the same: two entries, so that cursors go on."""
    first = message_batch.build(sends[::2], entry_position=1000, store_ms=5, store_host=STORE_HOST, effects=b"")
    last = message_batch.build(sends[1::2], entry_position=90_000, store_ms=6, store_host=STORE_HOST, effects=b"")
    assert [cursor.bytes for cursor, *_ in last.touched] == [each[3] for each in last.touched]
    return last._replace(payload=first.payload + last.payload)


plain = st.builds(
    request,
    st.lists(
        st.tuples(st.sampled_from(["TAGS", "KEYS", "WAIT", "a", "UNIQ_KEY"]), st.text("ab 1", min_size=1, max_size=5))
    ).map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)),
    st.binary(max_size=20),
    ext=st.fixed_dictionaries({"e": st.integers(-1, 7).map(str), "f": st.integers(0, 64).map(str)}),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
)
batches = st.lists(
    st.builds(
        BatchItem, st.integers(-9, 9), st.binary(max_size=9), st.sampled_from([b"", b"KEYS\x01k l\x02TAGS\x01t"])
    ),
    min_size=1,
    max_size=3,
).map(lambda items: request("", build_batch(items), code=320, ext={"m": "true"}))


@given(st.lists(st.one_of(plain, batches), min_size=1, max_size=6))
def test_entry_and_answers_are_those_of_the_twins(each: list[bytes]) -> None:
    data = b"".join(each)
    short, long = Node(), Node()
    sends, again = taken_by(short, data), taken_by(long, data)
    built = built_of(sends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_batch, "add_plain", TWINS["add_plain"])
        expected = built_of(again)
    assert (built.payload, built.offsets, built.positions) == (expected.payload, expected.offsets, expected.positions)

    sends, again = sends[1::2], again[1::2]
    written: list[bytes] = []
    for node, some in ((short, sends), (long, again)):
        parts: list[bytes] = []
        node.path.write = node.path.write_all = parts.append
        answers: Any = SendReplyWriter(STORE_HOST, "broker")
        if node is long:
            answers.acknowledge_plain = lambda _, __, at: at
        nothing: Any = None
        fates = SendOutcomes(nothing, nothing, node.retries, answers, ClosedConnections(lambda look: None))
        fates.stored(some, built, set())
        written.append(b"".join(parts))
        assert node.path.in_flight.bytes == sum(send.size for send in node.queue.waiting) - sum(s.size for s in some)
    assert written[0] == written[1]
    assert short.session.pending == long.session.pending
    assert short.session.issue() == long.session.issue()


def test_no_answer_for_who_is_gone() -> None:
    node = Node()
    sends = taken_by(node, request() * 2)
    built = built_of(sends * 2)
    node.path.closed = True
    node.path.write_all = lambda _: pytest.fail("answered")
    writer = SendReplyWriter(STORE_HOST, "broker")
    assert writer.acknowledge_plain(sends[:1], built, 0) == 1
    assert node.session.pending == 3
