"""Draws frames between nodes: every kind with its fields, sent by a guest that has completed the handshake.

The guest's id is not that of a member, so a correct node ignores its frames. Frames that could rightly change the group
are left out, such as a term above the present one in a frame that nodes believe.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack

from cluster.peer.wire import VERSION
from cluster.runtime.peer_frames import Kind
from jepsen_like.fuzz.remoting import Requests
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.hostile import almost_valid_values
from raftlog.core.message_plausibility import TERM_STEP_MAX
from statemachine.levels import GROUPS_LEVEL

RAW = "bytes that are no frame between nodes"
STRANGER = "a handshake that is none"
_HEAD = struct.Struct(">iBBH")
_HUGE = (1 << 62, (1 << 63) - 2, (1 << 63) - 1)


class Frames:
    """Draws frames from the guest `me` to the node `to`; `term` is the group's."""

    def __init__(self, rng: random.Random, requests: Requests, me: int, to: int, term: int, hello: list[Any]) -> None:
        """`hello`: a HELLO frame that would be accepted."""
        self._rng = rng
        self._requests = requests
        self._me, self._to, self._term = me, to, term
        self._hello = hello

    def draw(self) -> Shot:
        """Draws the next frame for an open connection. Most of these frames make the node close the connection."""
        rng = self._rng
        kind = rng.choice(KINDS)
        header, payload = self._good(kind)
        if rng.random() < 0.6 and header:
            self._mutate(header)
        if rng.random() < 0.05:
            payload = almost_valid_values.noise(rng, 300)
        return Shot(Port.PEER, kind.name, _frame(kind, header, payload), is_proven=True)

    def hello(self) -> Shot:
        """Returns the first frame of a connection, with no fault."""
        return Shot(Port.PEER, STRANGER, _frame(Kind.HELLO, list(self._hello), b""))

    def ping(self) -> Shot:
        """Draws a frame in which nothing is wrong, and which is answered."""
        number = self._rng.randrange(1 << 20)
        return Shot(Port.PEER, Kind.PING.name, _frame(Kind.PING, ["control", number, 1000, None], b""), is_proven=True)

    def stranger(self) -> Shot:
        """Draws the first frame of a connection, with a fault somewhere."""
        header = list(self._hello)
        for _ in range(self._rng.choice((1, 1, 2))):
            self._mutate(header)
        data = _frame(Kind.HELLO, header, b"")
        return Shot(
            Port.PEER, STRANGER, data[: self._rng.randrange(len(data) + 1)] if self._rng.random() < 0.1 else data
        )

    def raw(self) -> Shot:
        """Draws bytes that are no frame."""
        rng = self._rng
        good = self.draw().data
        data = (
            struct.pack(">i", rng.choice((-1, 0, 3, (64 << 20) + 1, (1 << 31) - 1))) + good,
            good[:5] + bytes((VERSION + 1,)) + good[6:],
            good[:6] + b"\xff\xff" + good[8:],
            good[:8] + almost_valid_values.noise(rng, 30) + good[8:],
            almost_valid_values.noise(rng, 200),
            _HEAD.pack(4 + 1, Kind.HEARTBEAT, VERSION, 1) + rng.choice((b"\xc1", b"\xc0", b"\x05", b"\x80", b"\xdf")),
        )
        return Shot(Port.PEER, RAW, rng.choice(data))

    def _mutate(self, header: list[Any]) -> None:
        rng = self._rng
        at, kind = rng.randrange(len(header)), rng.random()
        if kind < 0.7:
            header[at] = self._value()
        elif kind < 0.8:
            del header[at]
        elif kind < 0.9:
            header.insert(at, self._value())
        else:
            header[at] = [header[at]]

    def _value(self) -> Any:
        rng = self._rng
        each = almost_valid_values.value(rng)
        if type(each) is int:
            each = max(-(1 << 63), min(each, (1 << 64) - 1))
            return each if not self._term < each <= self._term + TERM_STEP_MAX else _HUGE[0]
        if type(each) is str:
            return each.encode("utf-8", "replace").decode()[:2000]
        return each if not isinstance(each, float) or each == each else 0.5

    def _good(self, kind: Kind) -> tuple[list[Any], bytes]:
        rng = self._rng
        term = rng.choice((0, self._term - 1, self._term, self._term, *_HUGE))
        index = rng.choice((0, 1, 1 << 30, 1 << 40))
        about: list[Any] = [self._me, self._to, term]
        payload = b""
        match kind:
            case Kind.FORWARD:
                payload = self._requests.draw().data[4:]
                about = [rng.randrange(1 << 20), "127.0.0.1", 5000, "default", None, self._term, rng.choice((0, 1, 2))]
            case Kind.FORWARD_REPLY:
                payload = self._requests.draw().data
                about = [rng.randrange(100), rng.random() < 0.5]
            case Kind.FETCH:
                what = rng.choice(("log", "tail", "state", "checkpoint", "segment", ""))
                about = [rng.randrange(100), what, [rng.choice((0, 1, 64, 1 << 40, -1, "x", None)) for _ in range(3)]]
            case Kind.FETCHED:
                about = [rng.randrange(100), rng.randrange(6), [], "x"]
                payload = almost_valid_values.noise(rng)
            case Kind.RELAY | Kind.RELAY_REPLY:
                about, payload = self._relayed(kind)
            case Kind.WHO_WAITS:
                about = [rng.randrange(100), "c", rng.choice(("i", "")), rng.choice((1000, 0, 1 << 40))]
            case Kind.WAITS:
                about = [rng.randrange(100), rng.choice((None, 0, 1)), [[1, 5]], [1], rng.choice(([], [1])), index]
            case Kind.READ_INDEX:
                about = [rng.choice((0, 5, 1 << 62, 1 << 63, -1))]
            case Kind.READ_INDEX_REPLY:
                about = [rng.randrange(100), rng.choice((index, -1, -2))]
            case Kind.GROUPS:  # this kind and the next eight belong to another channel
                about, payload = [], msgpack.packb([[2, "g2", [term, 0, 0], 1, [[1, "h", 1, "", {}]], []]])
            case Kind.TRUTH:
                about = [rng.randrange(100), index, GROUPS_LEVEL]
            case Kind.TRUTH_REPLY:
                about, payload = [rng.randrange(100), index, False], msgpack.packb([[1, "t", None]])
            case Kind.ACT:
                about, payload = [rng.randrange(100), "ann"], msgpack.packb([["delete_topic", "t"]])
            case Kind.ACT_REPLY:
                about, payload = [rng.randrange(100), 0, index, ""], msgpack.packb([[True, "", None]])
            case Kind.MEMBERS:
                about = [rng.randrange(100), "g"]
            case Kind.MEMBERS_REPLY:
                about, payload = [rng.randrange(100), True], msgpack.packb(["c@1"])
            case Kind.PLACES:
                about, payload = [], msgpack.packb([["t", index, [1, 2]]])
            case Kind.REGISTRY_STATE:
                about = [True, [], rng.randrange(9), True, rng.randrange(4), index, 7, rng.choice((-1, 9)), 1]
            case Kind.DEMANDS:
                demand = rng.choice((0.5, 0.0, -1.0, 1e308, float("nan"), 1, "1"))
                about, payload = [], msgpack.packb([["topic=*", "topic=t", "pull_messages", demand]])
            case Kind.WANT_WRITTEN:
                about = []
            case Kind.WRITTEN:
                about = [term, index]
            case Kind.PING:
                unreached = rng.choice((None, [], [1], [1, 2, 3]))
                about = [rng.choice(("control", "bulk")), rng.randrange(100), 1000, unreached]
            case Kind.PONG:
                about = [rng.choice(("control", "bulk")), rng.randrange(100)]
            case Kind.CHALLENGE:
                about = [rng.randbytes(32), rng.randbytes(8)]
            case Kind.PROOF:
                about = [rng.randbytes(rng.choice((0, 32)))]
            case Kind.WELCOME:
                about = ["x", self._to, "y", rng.randbytes(32)]
            case Kind.REFUSED:
                about = ["x", rng.choice(("", "removed")), 5]
            case Kind.REQUEST_VOTE:
                about += [[0, index], rng.random() < 0.5, rng.random() < 0.5]
            case Kind.REQUEST_VOTE_REPLY:
                about += [rng.random() < 0.5, rng.random() < 0.5, 0]
            case Kind.APPEND_ENTRIES:
                about += [0, index, index]
            case Kind.APPEND_ENTRIES_REPLY:
                about += [rng.random() < 0.5, index, [0, index]]
            case Kind.HEARTBEAT:
                about += [index, 0]
            case Kind.HEARTBEAT_REPLY:
                about += [0, 0, True]
            case Kind.INSTALL_SNAPSHOT:
                about += [index, [0, index]]
            case Kind.HELLO:
                about = list(self._hello)
            case Kind.TIMEOUT_NOW:
                about[2] = rng.choice((0, self._term - 1, *_HUGE))
        return about, payload

    def _relayed(self, kind: Kind) -> tuple[list[Any], bytes]:
        rng = self._rng
        if kind == Kind.RELAY_REPLY:
            return [rng.randrange(100), rng.randrange(6)], msgpack.packb([0, "", {"a": "b"}, b"x"])
        role = rng.choice(("producer", "consumer", ""))
        about = [rng.randrange(100), role, rng.choice(("g", None)), rng.choice((None, "c")), 1000]
        if rng.random() < 0.5:
            need = rng.choice((None, [4, "T", [3]], [9, "T", [3]], [4, "T", [99]]))
            about += [rng.choice((None, 0, 1)), need, rng.choice((None, "i"))]
        return about, msgpack.packb([rng.choice((39, -1)), rng.random() < 0.5, {"a": "b"}, b"x"])


KINDS = tuple(Kind)
KNOWN = frozenset(
    {
        Kind.HELLO,
        Kind.REFUSED,
        Kind.CHALLENGE,
        Kind.PROOF,
        Kind.WELCOME,
        Kind.DEMANDS,
        Kind.FORWARD,
        Kind.FORWARD_REPLY,
        Kind.FETCH,
        Kind.FETCHED,
        Kind.RELAY,
        Kind.RELAY_REPLY,
        Kind.WHO_WAITS,
        Kind.WAITS,
        Kind.READ_INDEX,
        Kind.READ_INDEX_REPLY,
        Kind.GROUPS,
        Kind.TRUTH,
        Kind.TRUTH_REPLY,
        Kind.ACT,
        Kind.ACT_REPLY,
        Kind.MEMBERS,
        Kind.MEMBERS_REPLY,
        Kind.PLACES,
        Kind.REGISTRY_STATE,
        Kind.WANT_WRITTEN,
        Kind.WRITTEN,
        Kind.PING,
        Kind.PONG,
        Kind.REQUEST_VOTE,
        Kind.REQUEST_VOTE_REPLY,
        Kind.APPEND_ENTRIES,
        Kind.APPEND_ENTRIES_REPLY,
        Kind.HEARTBEAT,
        Kind.HEARTBEAT_REPLY,
        Kind.TIMEOUT_NOW,
        Kind.INSTALL_SNAPSHOT,
    }
)
"""Kinds of frames whose content `_good` knows; a kind that is missing here fails a unit test."""
HANDLERS = (*(kind.name for kind in KINDS), STRANGER, RAW)
"""The names of all handlers that must be reached."""


def _frame(kind: int, header: list[Any], payload: bytes) -> bytes:
    try:
        packed: bytes = msgpack.packb(header, use_bin_type=True)
    except (OverflowError, ValueError):
        packed = msgpack.packb([str(each)[:50] for each in header])
    packed = packed[:65_000]
    return _HEAD.pack(4 + len(packed) + len(payload), kind, VERSION, len(packed)) + packed + payload
