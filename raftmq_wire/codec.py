"""Frames of the RocketMQ remoting protocol: JSON and binary ("ROCKETMQ") headers. Pure functions, no I/O.

    int32 L           bytes that follow = 4 + H + body
    int32 ser<<24|H   ser 0 = JSON, 1 = binary; H = header length
    H bytes           header
    rest              body

Binary header: int16 code · int8 language · int16 version · int32 opaque · int32 flag · int32 remarkLen · remark ·
int32 extLen · ext, where ext repeats int16 klen · key · int32 vlen · value. Source: RemotingCommand,
RocketMQSerializable; facts in docs/wire-protocol.md.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final

import msgspec

from raftmq_wire.json_text import MALFORMED

Signed32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]

JSON = 0
BINARY = 1
HEADER_BYTES_MAX: Final = 1 << 20
"""The longest request header that is accepted, in bytes. The longest properties take a fifth of it, with every byte
escaped."""
EXT_FIELDS_MAX: Final = 256
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
VERSION_SENT = 477
"""The protocol version that replies carry. It lies in 401..479, because clients take the version of a heartbeat's reply
as the "broker version"."""

LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)

REMARKS_AS_THEY_ARE: Final = ("JAVA", "GO")
"""The client languages whose clients show a remark as it is. Clients of other languages may use it as a printf
format."""

_PREFIX = struct.Struct(">ii")
_BINARY_FIXED = struct.Struct(">hbhiii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


class CodecError(ValueError):
    """The bytes are not a frame of the protocol. The peer is at fault, and the connection is closed."""


class Header(msgspec.Struct, gc=False):
    """A decoded header. `extFields` stays raw JSON until the handler for `code` decodes it."""

    code: Signed32
    opaque: Signed32 = 0
    flag: Signed32 = 0
    version: Signed32 = 0
    language: str | Signed32 = "JAVA"
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"{}")  # named as in the protocol


_decode_header = msgspec.json.Decoder(Header, strict=False).decode
_decode_ext = msgspec.json.Decoder(dict[str, Any] | None).decode
_decode_texts = msgspec.json.Decoder(dict[str, str]).decode
_encode_json = msgspec.json.Encoder().encode


HEADER_AT = 8
"""The offset of the header in a frame, in bytes: after the frame's length (4), and a word with the header's encoding
and length (4)."""


def check_header_size(begun: bytes) -> None:
    """Checks the first HEADER_AT bytes of a frame that is still arriving. Raises CodecError if they announce a header
    longer than HEADER_BYTES_MAX, so that the node need not wait for the rest."""
    size = int.from_bytes(begun[5:HEADER_AT], "big") if len(begun) >= HEADER_AT else 0
    if size > HEADER_BYTES_MAX:
        raise CodecError(f"a header of {size} bytes; the limit is {HEADER_BYTES_MAX}")


def decode_header(serialize_type: int, data: bytes) -> Header:
    """Decodes header bytes of either kind. Raises CodecError for a header that is malformed or too long."""
    if len(data) > HEADER_BYTES_MAX:
        raise CodecError(f"a header of {len(data)} bytes; the limit is {HEADER_BYTES_MAX}")
    if serialize_type == JSON:
        try:
            return _decode_header(data)
        except MALFORMED as error:
            raise CodecError(f"bad JSON header: {error}") from error
    if serialize_type == BINARY:
        return _decode_binary(data)
    raise CodecError(f"unknown serialize type {serialize_type}")


def ext_of(header: Header) -> dict[str, str]:
    """Returns the ext fields as strings (C++ and JS clients send raw numbers and booleans). Raises CodecError."""
    try:
        texts = _decode_texts(header.extFields)  # the usual case, from Java and Go clients: all values are strings
    except MALFORMED:
        pass
    else:
        if len(texts) <= EXT_FIELDS_MAX:
            return texts
    try:
        fields = _decode_ext(header.extFields)
    except MALFORMED as error:
        raise CodecError(f"extFields is not an object of values: {error}") from error
    if fields is None:
        return {}
    if len(fields) > EXT_FIELDS_MAX:
        raise CodecError(f"{len(fields)} extFields; the limit is {EXT_FIELDS_MAX}")
    return {k: v if type(v) is str else _as_text(v) for k, v in fields.items() if v is not None}


def _as_text(value: Any) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is list or type(value) is dict:
        raise CodecError("extFields is not an object of values: one is a list or an object itself")
    return str(value)


def is_true(text: str | None) -> bool:
    """Returns True if the text of an ext field means true: clients send `true` in any case, or `1`."""
    return text is not None and text.lower() in ("true", "1")


def _decode_binary(data: bytes) -> Header:
    try:
        code, language, version, opaque, flag, remark_len = _BINARY_FIXED.unpack_from(data, 0)
        at = _BINARY_FIXED.size
        if remark_len < 0 or at + remark_len + 4 > len(data):
            raise CodecError(f"remark length {remark_len} leaves the header")
        remark = data[at : at + remark_len].decode() if remark_len else None
        at += remark_len
        (ext_len,) = _I32.unpack_from(data, at)
        at += 4
        if ext_len < 0 or at + ext_len != len(data):
            raise CodecError(f"ext length {ext_len} does not fill the header")
        fields = _decode_binary_ext(data, at, at + ext_len)
    except (struct.error, UnicodeDecodeError) as error:
        raise CodecError(f"bad binary header: {error}") from error
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Header(code & 0xFFFF, opaque, flag, version, name, remark, msgspec.Raw(_encode_json(fields)))


def _decode_binary_ext(data: bytes, at: int, end: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    while at < end:
        (klen,) = _I16.unpack_from(data, at)
        at += 2
        if klen < 0 or at + klen + 4 > end:
            raise CodecError("ext key leaves the header")
        key = data[at : at + klen].decode()
        at += klen
        (vlen,) = _I32.unpack_from(data, at)
        at += 4
        if vlen < 0 or at + vlen > end:
            raise CodecError("ext value leaves the header")
        fields[key] = data[at : at + vlen].decode()
        at += vlen
    return fields


def encode_frame(
    code: int,
    opaque: int,
    flag: int,
    *,
    ext: dict[str, str] | None = None,
    remark: str | None = None,
    body: bytes = b"",
    serialize_type: int = JSON,
    language: str = "PYTHON",
    version: int = VERSION_SENT,
    reader: str | int = "",
) -> bytes:
    """Encodes a complete frame; the parameters are those of `encode_head`."""
    head = encode_head(
        code,
        opaque,
        flag,
        len(body),
        ext=ext,
        remark=remark,
        serialize_type=serialize_type,
        language=language,
        version=version,
        reader=reader,
    )
    return head + body if body else head


def encode_head(
    code: int,
    opaque: int,
    flag: int,
    body_size: int,
    *,
    ext: dict[str, str] | None = None,
    remark: str | None = None,
    serialize_type: int = JSON,
    language: str = "PYTHON",
    version: int = VERSION_SENT,
    reader: str | int = "",
) -> bytes:
    """Encodes a frame up to its body. `extFields` is always present, because the Java producer reads it without a null
    check. `reader`: the client's language, as the header of the answered request names it.

    A `%` in the remark is replaced by U+FF05, unless `reader` is in REMARKS_AS_THEY_ARE: the C++ client uses a remark
    as a printf format, and the name of a retry topic (`%RETRY%sales`) would make it read a wrong address.
    """
    if remark and "%" in remark and reader not in REMARKS_AS_THEY_ARE:
        remark = remark.replace("%", "\uff05")
    if serialize_type == BINARY:
        header = _encode_binary(code, opaque, flag, ext or {}, remark, language, version)
    else:
        header = _encode_json(
            {
                "code": code,
                "extFields": ext or {},
                "flag": flag,
                "language": language,
                "opaque": opaque,
                "remark": remark,
                "serializeTypeCurrentRPC": "JSON",
                "version": version,
            }
        )
    return _PREFIX.pack(4 + len(header) + body_size, serialize_type << 24 | len(header)) + header


def remark_as_written(remark: str | None) -> str | None:
    """Returns a received remark with the `%` that `encode_head` replaced, so that a person can copy the names in it. No
    name of a topic or group has a U+FF05."""
    return remark.replace("\uff05", "%") if remark else remark


class AlikeHeads:
    """Makes the JSON heads of answers that differ only in their opaque (the number of the request)."""

    __slots__ = ("_before", "_behind", "_body_size")

    def __init__(self, code: int, body_size: int, *, ext: dict[str, str], remark: str | None) -> None:
        """Encodes the head once; the arguments are those of `encode_head`."""
        head = encode_head(code, 0, FLAG_RESPONSE, body_size, ext=ext, remark=remark, language="JAVA")
        # Within texts, JSON writes a quotation mark with a backslash before it, and all ext fields are texts. The key
        # `"opaque":` is therefore found only once.
        before, name, behind = head[HEADER_AT:].partition(b'"opaque":0')
        self._before = before + name[:-1]
        self._behind = behind
        self._body_size = body_size

    def head(self, opaque: int) -> bytes:
        """Returns the head of the answer to the request `opaque`."""
        header = b"%b%d%b" % (self._before, opaque, self._behind)
        return _PREFIX.pack(4 + len(header) + self._body_size, len(header)) + header


def _encode_binary(
    code: int, opaque: int, flag: int, ext: dict[str, str], remark: str | None, language: str, version: int
) -> bytes:
    remark_bytes = (remark or "").encode()
    parts: list[bytes] = []
    for key, value in ext.items():
        k, v = key.encode(), value.encode()
        parts += (_I16.pack(len(k)), k, _I32.pack(len(v)), v)
    ext_bytes = b"".join(parts)
    code_16 = code - 0x10000 if code > 0x7FFF else code
    fixed = _BINARY_FIXED.pack(code_16, LANGUAGES.index(language), version, opaque, flag, len(remark_bytes))
    return b"".join((fixed, remark_bytes, _I32.pack(len(ext_bytes)), ext_bytes))
