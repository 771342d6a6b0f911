"""The fuzzer's requests of the remoting protocol: those of `jepsen_like.hostile.almost_valid` as frames, and bytes that
are no frame."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

from cluster.requests.table import SENDS
from jepsen_like.client_kit.frames import framed
from jepsen_like.fuzz.guard import Guard
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.hostile import almost_valid, almost_valid_values
from jepsen_like.hostile.almost_valid import FIELDS
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, encode_frame
from raftmq_wire.codes import RequestCode

UNKNOWN_CODES = (0, 1, 13, 41, 42, 318, 999, 32767, 65535)
UNKNOWN = "a code that nobody handles"
RAW = "bytes that are no frame"
_SELDOM = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    }
)
_CODES = [code for code in FIELDS for _ in range(1 if code in _SELDOM else 5)]
_SENDS, _OTHERS = ([code for code in _CODES if (code in SENDS) == wanted] for wanted in (True, False))
_SENDS_SHARE = 0.2
"""Share of the batches that are sends."""
HANDLERS = (*(f"{int(code)} {RequestCode(code).name}" for code in FIELDS), UNKNOWN, RAW)
"""The names of all handlers that must be reached."""


class Requests:
    """Draws requests, with ascending opaques."""

    def __init__(self, rng: random.Random, guard: Guard | None = None, *, is_good: bool = False) -> None:
        """`is_good`: nothing is wrong in the requests."""
        self._rng = rng
        self._guard = guard
        self._is_good = is_good
        self._opaque = 0

    def batch(self, count: int) -> list[Shot]:
        """Draws requests for one connection: either sends, or others. A send that cannot be decoded may end the
        connection with everything in flight."""
        codes = _SENDS if self._rng.random() < _SENDS_SHARE else _OTHERS
        return [self.draw(codes) for _ in range(count)]

    def draw(self, codes: Sequence[int] = ()) -> Shot:
        """Draws the next request, of any code or one of `codes`."""
        rng = self._rng
        self._opaque += 1
        if rng.random() < 0.01 and not self._is_good:
            return self._unknown()
        code = rng.choice(codes or _CODES)
        _, fields, body = (almost_valid.good if self._is_good else almost_valid.draw)(rng, code)
        return self._shot(f"{int(code)} {RequestCode(code).name}", int(code), fields, body)

    def raw(self) -> Shot:
        """Draws bytes that are no frame of the protocol; the node closes their connection, sooner or later."""
        rng = self._rng
        good = self.draw().data
        kind = rng.randrange(7)
        if kind == 0:
            data = struct.pack(">i", rng.choice((-1, 3, 0, 1, (16 << 20) + 1, (1 << 31) - 1))) + good
        elif kind == 1:
            at = rng.randrange(len(good))
            data = good[:at] + rng.randbytes(1 + rng.randrange(8)) + good[at + 1 :]
        elif kind == 2:
            data = good[:4] + struct.pack(">I", rng.getrandbits(32)) + good[8:]
        elif kind == 3:
            data = good[: rng.randrange(len(good))]
        elif kind == 4:
            data = self._binary_broken()
        elif kind == 5:
            fields = {rng.choice("abx"): almost_valid_values.value(rng) for _ in range(3)}
            header = almost_valid_values.encode(
                rng,
                {
                    "code": rng.choice(_CODES),
                    "opaque": almost_valid_values.value(rng),
                    "extFields": fields,
                    "flag": almost_valid_values.value(rng),
                    "remark": almost_valid_values.value(rng),
                },
            )
            data = framed(header)
        else:
            data = almost_valid_values.noise(rng, 400)
        return Shot(Port.REMOTING, RAW, data)

    def _unknown(self) -> Shot:
        return self._shot(
            UNKNOWN, self._rng.choice(UNKNOWN_CODES), {"x": str(almost_valid_values.number(self._rng))}, b""
        )

    def _shot(self, handler: str, code: int, fields: dict[str, Any], body: bytes) -> Shot:
        rng, is_proven = self._rng, False
        if self._guard is not None and code != RequestCode.SET_AUTH_MODE:  # unsigned, so that rules stay enforced
            fields, is_proven = self._guard.signed(rng, fields, body, is_good=self._is_good)
        flag = 0
        kind = 1.0 if self._is_good else rng.random()
        if kind < 0.08:
            flag = FLAG_ONEWAY
        elif kind < 0.1:
            flag = rng.choice((FLAG_RESPONSE, FLAG_RESPONSE | FLAG_ONEWAY))
        elif kind < 0.12:
            flag = rng.choice((4, 8, 1 << 20))
        if rng.random() < 0.15 and all(type(each) is str for each in fields.values()):
            try:
                data = self._binary(code, flag, fields, body)
            except (UnicodeEncodeError, struct.error):
                data = self._json(code, flag, fields, body)
        else:
            data = self._json(code, flag, fields, body)
        is_answered = not flag & (FLAG_ONEWAY | FLAG_RESPONSE)
        return Shot(Port.REMOTING, handler, data, self._opaque if is_answered else -1, is_proven)

    def _binary(self, code: int, flag: int, fields: dict[str, str], body: bytes) -> bytes:
        return encode_frame(code, self._opaque, flag, ext=fields, body=body, serialize_type=BINARY)

    def _json(self, code: int, flag: int, fields: dict[str, Any], body: bytes) -> bytes:
        rng = self._rng
        header: dict[str, Any] = {
            "code": code,
            "language": rng.choice(("JAVA", "CPP", "GO", 7)),
            "version": rng.choice((477, 0, 100)),
            "opaque": self._opaque,
            "flag": flag,
            "extFields": fields,
        }
        if rng.random() < 0.03 and not self._is_good:
            odd = {rng.choice(("remark", "language", "x", "serializeTypeCurrentRPC")): almost_valid_values.text(rng)}
            header |= odd if almost_valid_values.is_json(odd) else {}
        return framed(json.dumps(header).encode(), body)

    def _binary_broken(self) -> bytes:
        rng = self._rng
        good = bytearray(encode_frame(34, 1, 0, ext={"a": "b", "c": "d"}, serialize_type=BINARY))
        at = rng.randrange(8, len(good) - 4)
        good[at : at + 4] = struct.pack(">I", rng.choice((0xFFFFFFFF, 0x7FFFFFFF, 0, 0x80000000)))
        return bytes(good)
