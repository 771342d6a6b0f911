"""The kernel takes a signed send only if Python's judge lets it through, for the same user, and ends it alike."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.broker.access.secrets import Secrets
from cluster.flow.gate import Holder
from cluster.remoting.connection.frame import Frame
from cluster.remoting.handlers.send import make_intake
from cluster.runtime.alarms import Alarms
from cluster.runtime.framing import FrameBuffer
from jepsen_like.fakes.memory_kv import MemoryKV
from raftmq_wire import kernel
from raftmq_wire.codec import CodecError, Header, ext_of
from raftmq_wire.message_format import BatchItem, build_batch
from raftmq_wire.signature import SIGNATURE, UNIQUE_QUERY, V4_9_3, content, sign
from statemachine.access.rules import RuleRow, parse_rule
from statemachine.access.user_rows import Mode, User
from statemachine.access.users import Access
from tests.raftmq_wire.kernel.test_intake import fields
from tests.support.intake_kit import Node, frame
from tests.support.kernels import native_kernel
from tests.support.rows import each_row

KEY = b"k" * 32
SECRETS = {"shop": "shop-secret", "root": "root-secret", "long": "s" * 100, "gone": "gone-secret"}
PLAIN: dict[str, Any] = {
    "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000", "h": "0",
    "i": "TAGS\x01blue\x02UNIQ_KEY\x01AC10\x02", "j": "0", "k": "false", "m": "false", "n": "raftmq",
    "AccessKey": "shop",
}  # fmt: skip
TEXTS = st.sampled_from(["", "é", "a b", '"', "\\", "\x01", "\x7f", "1", "-0", "0", "true"])


@pytest.fixture(autouse=True, scope="module")
def _native() -> None:
    """Python has no short way: skips the module without the native kernel."""
    native_kernel()
    if kernel.NAME != "native":
        pytest.skip(kernel.WHY)


def users() -> tuple[Access, Secrets]:
    """Users of one cluster: shop may send to orders and to quick, long to all, root is a Super, gone is disabled."""
    access = Access(MemoryKV())
    secrets = Secrets(
        "key", access, clusters=lambda: ("c1",), entropy=bytes, now_ms=lambda: 0, alarms=Alarms(lambda: 0),
        read=lambda _: (KEY,),
    )  # fmt: skip
    key = secrets.key_to_use
    rules: dict[str, list[RuleRow]] = {
        "shop": [(1, "Topic:orders", ["Pub"], [], True), (1, "Topic:quick", ["Pub"], [], True)],
        "long": [(1, "Topic:*", ["Pub"], ["10.0.0.0/8"], True), (1, "Topic:closed", ["Pub"], [], False)],
    }
    for at, (name, secret) in enumerate(SECRETS.items(), 1):
        given_to = tuple(map(parse_rule, rules.get(name, [])))
        encrypted = secrets.encrypted(at, secret)
        user = User(at, name, name == "root", name != "gone", encrypted, key, 0, at, given_to)
        access.users.put(name, user)
        access.by_id.put(at, user)
    access.mode, access.key_id, access.keys_in_use, access.version = Mode.ENFORCE, key, frozenset([key]), 9
    return access, secrets


def signed(
    ext: dict[str, Any],
    body: bytes = b"hello",
    *,
    secret: str = "shop-secret",
    version: int = 477,
    first: bool = False,
    code: int = 310,
    ascii_only: bool = True,
    wrong: str = "",
) -> bytes:
    """A send that is signed as a client signs it: the text of each value as it stands in JSON. `wrong` replaces the
    signature."""
    ext = {name: value for name, value in ext.items() if value is not ...}
    raw = json.dumps(ext, ensure_ascii=ascii_only).encode()
    try:
        texts = ext_of(Header(code, extFields=msgspec.Raw(raw)))
        signature = wrong or sign(secret.encode(), content(texts, body, version=version))
    except (CodecError, UnicodeEncodeError):  # nobody can sign it
        signature = wrong
    ext = {SIGNATURE: signature, **ext} if first else {**ext, SIGNATURE: signature}
    whole = {"code": code, "extFields": ext, "flag": 0, "language": "CPP", "opaque": 11, "version": version}
    return frame(json.dumps(whole, ensure_ascii=ascii_only, separators=(",", ":")).encode(), body)


def compared(data: bytes) -> int:
    """Returns the number of frames that the kernel takes, after Python's judge and long way were found to end alike."""
    (short_access, short_secrets), (long_access, long_secrets) = users(), users()
    short, long = Node(), Node().in_python()
    judge, twin = short.judged_by(short_access, short_secrets), long.judged_by(long_access, long_secrets)
    _, frames = FrameBuffer(1 << 24).feed(data)
    taken = judge.take_sends(short.intake.take, short.path, data, frames, 0)
    for at, (start, stop) in enumerate(frames[:taken]):
        made = long.frame_of(data, start, stop)
        assert twin.admits(made), "the kernel took what is denied"
        origin = short.queue.waiting[at].origin
        assert type(origin) is Frame
        assert origin.user == made.user != 0
        long.handler.on_send(made)
    assert [fields(send) for send in short.queue.waiting] == [fields(send) for send in long.queue.waiting]
    assert not long.refused
    for start, stop in frames[taken : taken + 1]:
        with contextlib.suppress(CodecError):  # nobody may have signed it, or it may be no plain send
            twin.admits(long.frame_of(data, start, stop))
    client, other = judge._clients[short.path], twin._clients.get(long.path)
    assert client.users.items() <= (other.users if other else {}).items()
    return taken


BATCH = build_batch([BatchItem(7, b"one", b"TAGS\x01t\x02"), BatchItem(-1, b"", b"UNIQ_KEY\x01U\x02")])


@each_row(
    "data",
    [
        signed(PLAIN),
        signed(PLAIN, first=True),
        signed(PLAIN, b""),
        signed(PLAIN, bytes(100_000)),
        signed(dict(reversed(PLAIN.items()))),
        signed(PLAIN | {"AccessKey": "root", "b": "orders"}, secret="root-secret"),
        signed(PLAIN | {"AccessKey": "long"}, secret="s" * 100),
        signed(PLAIN | {"e": 1, "f": 0, "g": 5, "h": -3, "j": 0, "k": False, "m": False}),  # as C++ and Node write them
        signed(PLAIN | {"l": None, "SecurityToken": "token", "zz": True, "B": "1"}),
        signed(PLAIN | {"i": "é漢\x01紅\x02UNIQ_KEY\x01x\x02"}, ascii_only=False),
        signed(PLAIN | {"i": 'q\x01"\\/\b\f\n\r\t\x02'}),
        signed(PLAIN | {UNIQUE_QUERY: "true"}, version=V4_9_3),
        signed(PLAIN | {UNIQUE_QUERY: "true"}, version=V4_9_3 + 1),
        signed(PLAIN | {"i": "", "m": "true"}, BATCH, code=320),
    ],
)  # fmt: skip
def test_signed_sends_are_taken(data: bytes) -> None:
    assert compared(data) == 1


def edited(data: bytes, old: bytes, new: bytes) -> bytes:
    """The frame with another text in its header."""
    size = 8 + int.from_bytes(data[4:8], "big")
    assert old in data[8:size]
    return frame(data[8:size].replace(old, new, 1), data[size:])


@each_row(
    "data",
    [
        signed(PLAIN, secret="another"),
        signed(PLAIN | {"AccessKey": "nobody"}),
        signed(PLAIN | {"AccessKey": "gone"}, secret="gone-secret"),
        signed(PLAIN | {"AccessKey": ""}),
        signed(PLAIN | {"AccessKey": None}),
        signed(PLAIN | {"AccessKey": ...}),
        signed(PLAIN | {"AccessKey": "root"}),  # a right signature of another
        signed(PLAIN, wrong="x"),
        signed(PLAIN, wrong="A" * 27 + "="),
        signed(PLAIN, wrong="A" * 10_000),
        signed(PLAIN)[:-1] + b"O",
        edited(signed(PLAIN), b'"e":"2"', b'"e":"3"'),
        edited(signed(PLAIN), b'"a":', b'"zz":"1","a":'),
        edited(signed(PLAIN), b'="', b'"'),
        edited(signed(PLAIN), b'"AccessKey":"shop"', b'"AccessKey":"root","AccessKey":"shop"'),
        edited(signed(PLAIN), b'"Signature":', b'"Signature":"","Signature":'),
        edited(signed(PLAIN | {"zz": "1"}), b'"zz":"1"', b'"zz":"2","zz":"1"'),
        edited(signed(PLAIN | {"zz": "1"}), b'"zz":"1"', b'"zz":"1","zz":null'),
        signed(PLAIN | {"zz": "é"}),
        signed(PLAIN | {"zz": 1.5}),
        edited(signed(PLAIN | {"e": "-0"}), b'"e":"-0"', b'"e":-0'),  # Python's text is 0
        edited(signed(PLAIN | {UNIQUE_QUERY: "true"}, version=V4_9_3), b'"version":399', b'"version":400'),
        signed(PLAIN | {"b": "closed", "AccessKey": "long"}, secret="s" * 100),
        signed(PLAIN | {"b": "l" * 200}),  # shop has no right to it
        signed(PLAIN | {f"x{at}": "1" for at in range(60)}),
        signed(PLAIN | {"i": "DELAY\x013\x02"}),
    ],
)  # fmt: skip
def test_what_is_left_to_the_judge(data: bytes) -> None:
    assert compared(data) == 0


def test_a_send_that_is_replayed_is_taken_again() -> None:
    """The signature has neither a time nor a nonce."""
    assert compared(signed(PLAIN) * 3) == 3


def test_a_right_is_not_kept_for_a_signature() -> None:
    good, bad = signed(PLAIN), signed(PLAIN, secret="another")
    assert compared(good + good + bad + good) == 2


def test_the_sends_of_one_call_are_of_one_user() -> None:
    """The room that was asked for is that user's."""
    shop, root = signed(PLAIN), signed(PLAIN | {"AccessKey": "root"}, secret="root-secret")
    assert compared(shop + shop + root + shop) == 2
    assert compared(root + shop) == 1


def test_room_is_asked_once_for_the_user_of_the_sends() -> None:
    node = Node()
    judge = node.judged_by(*users())
    asked: list[tuple[Holder, int]] = []
    data = signed(PLAIN) * 4
    _, frames = FrameBuffer(1 << 24).feed(data)
    size = frames[0][1] - frames[0][0] - 4

    def room(holder: Holder, user: int) -> int:
        asked.append((holder, user))
        return 2 * size + size // 2

    node.gate.room = room  # type: ignore[method-assign]
    intake = make_intake(node.as_proposals, node.sends, node.retries, node.limits)
    assert judge.take_sends(intake.take, node.path, data, frames, 0) == 2
    assert asked == [(node.path.in_flight, 1)]


def test_a_change_of_rules_counts_from_the_next_read() -> None:
    access, secrets = users()
    node = Node()
    judge = node.judged_by(access, secrets)
    data = signed(PLAIN)
    _, frames = FrameBuffer(1 << 24).feed(data)
    assert judge.take_sends(node.intake.take, node.path, data, frames, 0) == 1
    for user in (User(1, "shop", False, True, access.users["shop"].secret, access.key_id, 0, 10), None):
        if user is None:
            access.users.remove("shop")
        else:
            access.users.put("shop", user)
        access.version += 1
        assert judge.take_sends(node.intake.take, node.path, data, frames, 0) == 0
    access.users.put("shop", users()[0].users["shop"])
    access.version += 1
    assert judge.take_sends(node.intake.take, node.path, data, frames, 0) == 1


def test_nothing_is_taken_while_no_signature_can_be_verified() -> None:
    access, secrets = users()
    node = Node()
    judge = node.judged_by(access, secrets)
    data = signed(PLAIN)
    _, frames = FrameBuffer(1 << 24).feed(data)
    judge._stale = lambda: "no leader was heard"
    assert judge.take_sends(node.intake.take, node.path, data, frames, 0) == 0
    judge._stale = str
    access.keys_in_use = frozenset(["another"])
    assert judge.take_sends(node.intake.take, node.path, data, frames, 0) == 0


def test_a_connection_keeps_few_rights() -> None:
    access, secrets = users()
    node = Node()
    judge = node.judged_by(access, secrets)
    for at in range(200):
        node.slots[f"t{at}"] = node.slots["orders"]
        data = signed(PLAIN | {"AccessKey": "root", "b": f"t{at}"}, secret="root-secret")
        _, frames = FrameBuffer(1 << 24).feed(data)
        assert judge.take_sends(node.intake.take, node.path, data, frames, 0) == 1
    client = judge._clients[node.path]
    assert 0 < len(client.rights) <= client.RIGHTS_MAX + 1


values: st.SearchStrategy[Any] = st.one_of(
    st.integers(-5, 9).map(str),
    st.integers(-(1 << 33), 1 << 33),
    st.sampled_from([None, True, False, "true", "false", "", 1.5, [], ...]),
    TEXTS,
    st.text(max_size=3),
)
names = st.sampled_from(
    [*"abcdefghijklmnz", "AccessKey", "SecurityToken", "Signature2", UNIQUE_QUERY, "AccessKex", "A", "zz", "é"]
)
sends = st.builds(
    lambda ext, more, **named: signed(ext | more, **named),
    st.permutations(list(PLAIN.items())).map(dict),
    st.dictionaries(names, values, max_size=3),
    body=st.binary(max_size=20),
    secret=st.sampled_from(["shop-secret", "shop-secret", "root-secret"]),
    version=st.sampled_from([0, 398, V4_9_3, 400, 477]),
    first=st.booleans(),
    code=st.sampled_from([310, 310, 320, 10]),
    ascii_only=st.booleans(),
)


@given(st.lists(sends, min_size=1, max_size=3))
def test_any_signed_send_ends_alike(each: list[bytes]) -> None:
    compared(b"".join(each))


@given(sends, st.lists(st.tuples(st.integers(8, 500), st.integers(0, 255)), max_size=2))
@example(signed(PLAIN), [(12, 0x22)])
def test_any_bytes_of_a_signed_send_end_alike(whole: bytes, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(whole)
    for at, byte in flips:
        damaged[min(at, len(damaged) - 1)] = byte
    compared(bytes(damaged))
