"""Strategies for what clients write into a connection: frames of the shapes that real clients send, and broken ones.

A shape is a header as text, so that its JSON can be damaged in ways that no JSON library would write: a key twice,
another escape for the same character, a number beyond every type, a value of another kind.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from raftmq_wire.codec import BINARY, encode_frame

_T = TypeVar("_T")

TOPICS = ("orders", "payments", "%RETRY%sales", "%DLQ%sales", "TBW102", "no/such", "", "ü", "l" * 200)
NUMBERS = (
    *("0", "1", "3", "4", "-1", "7", "007", "+1", "-0", "1.0", "1e3", " 1", "0x1", "", "null", "true", "ß", "\u0661"),
    *(str(2**bits + off) for bits in (31, 32, 63, 64) for off in (-1, 0, 1)),
    "-2147483649",
    "9" * 400,
)
PLAIN_NAMES = ("UNIQ_KEY", "TAGS", "KEYS", "WAIT", "x")
ODD_NAMES = ("DELAY", "TIMER_DELAY_SEC", "TRAN_MSG", "POP_CK", "ACK_LEVEL", "UNIQ_KEY", "TAGS", "")
VALUES = ("A", "true", "", "0", "3", "a b  c", "order-42", "0123456789ABCDEF" * 2, "ü€😀", '"\\', "\x7f", "k" * 300)

_SEND: dict[str, tuple[str, str]] = {
    "a": ("producerGroup", "g"),
    "b": ("topic", "orders"),
    "c": ("defaultTopic", "TBW102"),
    "d": ("defaultTopicQueueNums", "4"),
    "e": ("queueId", "1"),
    "f": ("sysFlag", "0"),
    "g": ("bornTimestamp", "1700000000000"),
    "h": ("flag", "0"),
    "i": ("properties", ""),
    "j": ("reconsumeTimes", "0"),
    "k": ("unitMode", "false"),
    "l": ("maxReconsumeTimes", "16"),
    "m": ("batch", "false"),
    "n": ("brokerName", "raftmq"),
}
"""Letter of code 310 -> name of code 10, an ordinary value."""


def _properties(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(VALUES)), max_size=5)
    return pairs.map(lambda found: "".join(f"{name}\x01{value}\x02" for name, value in found))


plain_properties = _properties(PLAIN_NAMES)
odd_properties = (
    _properties(ODD_NAMES)
    | plain_properties.map(lambda text: text[:-1])
    | st.text(max_size=20)
    | st.sampled_from(["\x01", "\x02\x02", "UNIQ_KEY"])
)


def one_in(count: int, rare: st.SearchStrategy[_T], usual: st.SearchStrategy[_T]) -> st.SearchStrategy[_T]:
    """`rare` once in `count` times."""
    return st.integers(1, count).flatmap(lambda drawn: rare if drawn == count else usual)


bodies = st.binary(max_size=40) | st.sampled_from([b"", bytes(1024), b"b" * 3000])
opaques = st.integers(0, 9) | st.sampled_from([2**31 - 1, -(2**31), -1])


def framed(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """A whole frame around header bytes."""
    return struct.pack(">iI", 4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body


def _written(name: str, escape: str) -> str:
    """A JSON string as some client writes it."""
    if escape == "every":
        return '"' + "".join(f"\\u{unit:04x}" for unit in _units(name)) + '"'
    text = json.dumps(name, ensure_ascii=escape == "ascii")
    return text.replace("/", "\\/") if escape == "slash" else text


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return list(struct.unpack(f">{len(data) // 2}H", data))


@st.composite
def send_fields(draw: st.DrawFn) -> dict[str, str]:
    """Letters -> values of one send: usually ordinary, sometimes one or two that are not."""
    fields = {letter: value for letter, (_, value) in _SEND.items()}
    fields["b"] = draw(st.sampled_from(["orders", "payments"]))
    fields["e"] = draw(st.sampled_from(["0", "1", "3", "-1"]))
    fields["i"] = draw(plain_properties)
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))):
        letter = draw(st.sampled_from(sorted(fields)))
        odd = {"b": st.sampled_from(TOPICS), "i": odd_properties, "m": st.sampled_from(["true", "True", "1", "no"])}
        fields[letter] = draw(odd.get(letter, st.sampled_from(NUMBERS)))
    for letter in draw(st.sets(st.sampled_from(sorted(fields)), max_size=2) | st.just(set())):
        if draw(st.integers(0, 7)) == 7:
            del fields[letter]
    return fields


@st.composite
def json_sends(draw: st.DrawFn) -> bytes:
    """A send as Java, Go, C++ and Node.js clients write it: letters or names, strings or bare numbers, any order."""
    code = draw(st.sampled_from([310, 310, 310, 10]))
    fields = draw(send_fields())
    escape = draw(st.sampled_from(["ascii", "ascii", "utf-8", "slash", "every"]))
    bare = draw(st.sampled_from([False, False, False, True]))
    order = draw(st.permutations(sorted(fields))) if draw(st.integers(0, 3)) == 3 else list(fields)
    pairs = []
    for letter in order:
        name = letter if code == 310 else _SEND[letter][0]
        value = fields[letter]
        bares = bare and (value in ("true", "false") or (value.isascii() and value.isdigit()))
        pairs.append(f"{_written(name, '')}:{value if bares else _written(value, escape)}")
    return _with_header(draw, code, pairs, draw(bodies))


def _with_header(draw: st.DrawFn, code: int, pairs: list[str], body: bytes) -> bytes:
    """A frame with those ext fields, some of them twice or of another kind."""
    if draw(st.integers(0, 19)) == 19 and pairs:
        pairs.append(draw(st.sampled_from(pairs)))
    if draw(st.integers(0, 19)) == 19:
        pairs.append(
            draw(st.sampled_from(['"x":{"y":[1,{}]}', '"x":[]', '"x":null', '"b":1', '"i":null', '"unknown":"1"']))
        )
    space = draw(st.sampled_from(["", "", "", " ", "\n\t"]))
    ext = "{" + f",{space}".join(pairs) + "}"
    top = [
        f'"code":{space}{code}',
        f'"extFields":{space}{ext}',
        f'"flag":{draw(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 2, 4, 1]))}',
        '"language":"JAVA"',
        f'"opaque":{draw(opaques)}',
        '"serializeTypeCurrentRPC":"JSON"',
        f'"version":{draw(st.sampled_from([477, 477, 0, 120]))}',
    ]
    if draw(st.integers(0, 19)) == 19:
        odd = [
            '"remark":null',
            '"remark":"\\ud800"',
            '"opaque":7',
            '"flag":"0"',
            '"code":10',
            '"extFields":{}',
            '"z":[[1]]',
            '"opaque":' + "9" * 30,
        ]
        top.append(draw(st.sampled_from(odd)))
    if draw(st.integers(0, 4)) == 4:
        top = draw(st.permutations(top))
    text = space + "{" + f",{space}".join(top) + "}" + space
    return framed(text.encode("utf-8", "surrogatepass"), body)


@st.composite
def binary_sends(draw: st.DrawFn) -> bytes:
    """The same with a binary header, as `-Drocketmq.serialize.type=ROCKETMQ` makes Java clients write it."""
    fields = draw(send_fields())
    fields = {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}
    return encode_frame(310, draw(st.integers(0, 9)), 0, ext=fields, body=draw(bodies), serialize_type=BINARY)


def _message(body: bytes, text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    size = 22 + len(body) + len(data)
    return struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">H", len(data)) + data


batches = st.lists(
    st.builds(_message, bodies, one_in(6, odd_properties, plain_properties)), min_size=1, max_size=4
).map(b"".join)


@st.composite
def batch_sends(draw: st.DrawFn) -> bytes:
    """Code 320, and now and then a body whose lengths lie."""
    fields = draw(send_fields()) | {"m": "true"}
    body = draw(batches)
    if body and draw(st.integers(0, 7)) == 7:
        body = draw(damaged(st.just(body)))
    return _with_header(draw, 320, [f"{_written(k, '')}:{_written(v, 'ascii')}" for k, v in fields.items()], body)


@st.composite
def other_requests(draw: st.DrawFn) -> bytes:
    """Requests that are no sends, and answers that nobody has asked for."""
    code = draw(st.sampled_from([11, 15, 34, 105, 25, 14, 38, 0, 1, 77777]))
    ext: dict[str, str] = {"topic": "orders", "queueId": "0", "queueOffset": "0", "consumerGroup": "g"}
    return encode_frame(code, draw(st.integers(0, 9)), draw(st.sampled_from([0, 2, 1])), ext=ext, body=draw(bodies))


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of it changed, left out, or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how: Callable[[bytearray, int, int], None] = draw(st.sampled_from([_changed, _left_out, _put_in]))
        how(data, at, draw(st.sampled_from(list(b'"\\{}[],:\x00\x01\x02\x7f\x80\xc3\xed\xff0-'))))
    return bytes(data)


def _changed(data: bytearray, at: int, value: int) -> None:
    data[at : at + 1] = bytes([value])


def _left_out(data: bytearray, at: int, value: int) -> None:
    del data[at : at + 1 + value % 5]


def _put_in(data: bytearray, at: int, value: int) -> None:
    data[at:at] = bytes([value])


def _header_damaged(frame: bytes, header: bytes) -> bytes:
    """The frame's lengths follow the header, so that what is behind it is read as a frame again."""
    size = int.from_bytes(frame[5:8], "big")
    return framed(header, frame[8 + size :], frame[4])


@st.composite
def bad_headers(draw: st.DrawFn) -> bytes:
    """A frame that is whole, with a header that is not."""
    frame = draw(json_sends())
    size = int.from_bytes(frame[5:8], "big")
    return _header_damaged(frame, draw(damaged(st.just(frame[8 : 8 + size]))))


frames = json_sends() | json_sends() | batch_sends() | binary_sends() | other_requests()


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """Draws the bytes that one connection writes, cut into reads at any place. They begin with a send that is taken."""
    first = framed(
        b'{"code":310,"extFields":{"b":"orders","e":"0","i":""},"flag":0,"opaque":1,"version":477}', b"first"
    )
    parts = [first, *draw(st.lists(one_in(12, bad_headers(), frames), min_size=2, max_size=12))]
    if draw(st.integers(0, 7)) == 7:
        parts.append(draw(damaged(frames)))
    data = b"".join(parts)
    if draw(st.integers(0, 7)) == 7:
        data = data[: draw(st.integers(0, len(data)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True) if stop > start]
