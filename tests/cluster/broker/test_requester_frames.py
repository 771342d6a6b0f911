"""Frames about requesters: what goes in comes out, anything else is a WireError."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.groups.group_members import CLIENT_ID_MAX
from cluster.broker.groups.relay_frame import CORRELATION_MAX
from cluster.broker.groups.reply_notes import TTL_MAX_MS
from cluster.broker.groups.requester_frames import (
    USERS_MAX,
    RequesterKnown,
    WhoWaits,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from cluster.peer.wire import pack, unpack
from cluster.runtime.peer_frames import Kind, WireError
from tests.support.rows import each_row

LONGEST = WhoWaits((1 << 63) - 1, "\U0001f600" * CLIENT_ID_MAX, "\U0001f600" * CORRELATION_MAX, TTL_MAX_MS)
MOST = RequesterKnown(7, ((1, (1 << 63) - 1),) * USERS_MAX, tuple(range(USERS_MAX)), tuple(range(USERS_MAX)), 1 << 40)


@pytest.mark.parametrize("asked", [WhoWaits(0, "", "", 1), LONGEST])
def test_a_question_comes_out_as_it_went_in(asked: WhoWaits) -> None:
    frame = pack(Kind.WHO_WAITS, encode_question(asked))
    assert decode_question(unpack(frame, 4, len(frame))[1]) == asked


@pytest.mark.parametrize(
    "waits", [RequesterKnown(None, (), (), (), 0), RequesterKnown(0, ((0, 5),), (0,), (), 9), MOST]
)
def test_an_answer_comes_out_as_it_went_in(waits: RequesterKnown) -> None:
    frame = pack(Kind.WAITS, encode_answer(3, waits))
    assert decode_answer(unpack(frame, 4, len(frame))[1]) == (3, waits)


@each_row(
    "header",
    [
        [],
        [1, "c", "i"],
        [1, "c", "i", 1, 1],
        ["1", "c", "i", 1],
        [-1, "c", "i", 1],
        [1 << 63, "c", "i", 1],
        [1, b"c", "i", 1],
        [1, "c", None, 1],
        [1, "c" * (CLIENT_ID_MAX + 1), "i", 1],
        [1, "c", "i" * (CORRELATION_MAX + 1), 1],
        [1, "c", "i", 0],
        [1, "c", "i", TTL_MAX_MS + 1],
    ],
)
def test_what_is_no_question(header: list[Any]) -> None:
    with pytest.raises(WireError):
        decode_question(header)


@each_row(
    "header",
    [
        [],
        [1, None, [], [], []],
        [-1, None, [], [], [], 0],
        [1, -1, [], [], [], 0],
        [1, "7", [], [], [], 0],
        [1, None, [1], [], [], 0],
        [1, None, [[1]], [], [], 0],
        [1, None, [[1, "2"]], [], [], 0],
        [1, None, [[1, 2]] * (USERS_MAX + 1), [], [], 0],
        [1, None, [], [True], [], 0],
        [1, None, [], [], [-1], 0],
        [1, None, [], [], [1] * (USERS_MAX + 1), 0],
        [1, None, [], [], [], -1],
        [1, None, [], [], [], None],
    ],
)
def test_what_is_no_answer(header: list[Any]) -> None:
    with pytest.raises(WireError):
        decode_answer(header)
