"""Frames of relayed requests: what goes in comes out, anything else is a WireError."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from cluster.broker.groups.group_members import Role
from cluster.broker.groups.relay_frame import (
    CORRELATION_MAX,
    NAME_MAX,
    Relayed,
    RelayStatus,
    decode_relay,
    decode_reply,
    encode_relay,
    encode_reply,
)
from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.peer.wire import pack
from cluster.runtime.peer_frames import Kind as FrameKind
from cluster.runtime.peer_frames import WireError
from statemachine.access.rules import Action, Kind, Need
from tests.support.rows import each_row

REQUEST = ClientRequest(326, {"properties": "\u00e9" * 70_000}, b"\xff\x00", oneway=False)
GOOD = [7, "producer", "g", None, 1000]
BODY = [39, True, {"a": "b"}, b"x"]


@pytest.mark.parametrize("group", ["g", None])
@pytest.mark.parametrize("client_id", ["c", None])
def test_a_relay_comes_out_as_it_went_in(group: str | None, client_id: str | None) -> None:
    relayed = Relayed(1 << 62, Role.CONSUMER, group, client_id, 10_000, REQUEST)
    header, payload = encode_relay(relayed)
    assert pack(FrameKind.RELAY, header, len(payload)), "long fields do not count for the header's 16 bits"
    assert (len(header), decode_relay(header, payload)) == (5, relayed), "older nodes know no other form"


@each_row("user", [0, 7, None])
@each_row("need", [Need(Kind.TOPIC, "T", (Action.SUB, Action.GET)), None])
@each_row("correlation_id", ["c" * CORRELATION_MAX, "", None])
def test_a_relay_says_who_may_get_it(user: int | None, need: Need | None, correlation_id: str | None) -> None:
    relayed = Relayed(1, Role.PRODUCER, "g", None, 10_000, REQUEST, user, need, correlation_id)
    assert decode_relay(*encode_relay(relayed)) == relayed


@each_row("status", list(RelayStatus))
def test_a_reply_comes_out_as_it_went_in(status: RelayStatus) -> None:
    answer = ClientAnswer(-1, "r", {"a": "b"}, b"y") if status is RelayStatus.ANSWERED else None
    assert decode_reply(*encode_reply(3, status, answer)) == (3, status, answer)


@each_row(
    ("header", "fields"),
    [
        ([], BODY),
        ([*GOOD, 1], BODY),
        ([*GOOD, None, None], BODY),
        ([*GOOD, None, None, None, None], BODY),
        ([*GOOD, -1, None, None], BODY),
        ([*GOOD, 1 << 63, None, None], BODY),
        ([*GOOD, "7", None, None], BODY),
        ([*GOOD, 7, [4], None], BODY),
        ([*GOOD, 7, [3, "T", [4]], None], BODY),
        ([*GOOD, 7, [4, "T", [99]], None], BODY),
        ([*GOOD, 7, [4, "T", ["4"]], None], BODY),
        ([*GOOD, 7, [4, "T" * (NAME_MAX + 1), [4]], None], BODY),
        ([*GOOD, 7, [4, "T", [4] * 100], None], BODY),
        ([*GOOD, 7, None, 5], BODY),
        ([*GOOD, 7, None, "c" * (CORRELATION_MAX + 1)], BODY),
        (["7", *GOOD[1:]], BODY),
        ([-1, *GOOD[1:]], BODY),
        ([1 << 63, *GOOD[1:]], BODY),
        ([7, "leader", *GOOD[2:]], BODY),
        ([7, "producer", 5, None, 1000], BODY),
        ([7, "producer", "g" * 256, None, 1000], BODY),
        ([7, "producer", "g", "c" * 1025, 1000], BODY),
        ([7, "producer", "g", None, 0], BODY),
        ([7, "producer", "g", None, 60_001], BODY),
        (GOOD, None),
        (GOOD, BODY[:3]),
        (GOOD, [-1, *BODY[1:]]),
        (GOOD, [1 << 31, *BODY[1:]]),
        (GOOD, [39, 1, *BODY[2:]]),
        (GOOD, [39, True, [], b""]),
        (GOOD, [39, True, {"a": 1}, b""]),
        (GOOD, [39, True, {1: "a"}, b""]),
        (GOOD, [39, True, {}, "text"]),
    ],
)
def test_what_is_no_relay(header: list[Any], fields: Any) -> None:
    with pytest.raises(WireError):
        decode_relay(header, msgpack.packb(fields))


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgpack.packb(BODY) + b"x", msgpack.packb([1, True])[:-1]])
def test_what_is_no_payload(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_relay(GOOD, payload)


@each_row(
    ("header", "fields"),
    [
        ([], None),
        ([1], None),
        ([1, 5], None),
        ([-1, 0], None),
        ([1, 3], [0, "r", {}]),
        ([1, 3], ["0", "r", {}, b""]),
        ([1, 3], [0, None, {}, b""]),
        ([1, 3], [0, "r", None, b""]),
        ([1, 3], [0, "r", {}, None]),
    ],
)
def test_what_is_no_reply(header: list[Any], fields: Any) -> None:
    with pytest.raises(WireError):
        decode_reply(header, msgpack.packb(fields))
