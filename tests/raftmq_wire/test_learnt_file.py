"""The file of learnt limits: what was cut off or changed is not taken."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from raftmq_wire.learnt_file import LearntFile, LearntOrigin, TopicLimits, decode_file, encode_file
from tests.support.rows import each_row

ORIGIN = LearntOrigin(cluster="c", made_ms=9, first_ms=1, last_ms=8, expires_ms=20)
FILE = LearntFile(ORIGIN, {"b": TopicLimits([1] * 24, [2] * 24), "a": TopicLimits(list(range(168)), [0] * 168)})


def test_a_file_is_read_as_it_was_written() -> None:
    assert decode_file(encode_file(FILE)) == FILE
    assert decode_file(encode_file(FILE)).digest == FILE.digest


def test_a_file_that_is_torn_anywhere_is_not_taken() -> None:
    whole = encode_file(FILE)
    for end in range(0, len(whole) - 1, 3):
        with pytest.raises(ValueError, match="torn"):
            decode_file(whole[:end])


def test_a_changed_byte_is_found() -> None:
    rng, whole = Random(1), bytearray(encode_file(FILE))
    for _ in range(2_000):
        at, value = rng.randrange(len(whole)), rng.randrange(256)
        changed = bytearray(whole)
        changed[at] = value
        try:
            found = decode_file(bytes(changed))
        except ValueError:
            continue
        assert found == FILE, "white space alone, or the same byte"


@each_row(
    ("change", "why"),
    [
        ({"v": 1}, "its version is 1, and this raftmq reads 2"),
        ({"topics": {}}, "it has 0 topics"),
        ({"topics": {f"t{n}": [[1] * 24, [1] * 24] for n in range(2_001)}}, "it has 2001 topics"),
        ({"topics": {"a b": [[1] * 24, [1] * 24]}}, "is no name of a topic"),
        ({"topics": {"a": [[1] * 25, [1] * 25]}}, "neither 24 nor 168"),
        ({"topics": {"a": [[1] * 24, [1] * 168]}}, "neither 24 nor 168"),
        ({"topics": {"a": [[-1] * 24, [1] * 24]}}, "it is no file of learnt limits"),
        ({"topics": {"a": [[2**63] * 24, [1] * 24]}}, "it is no file of learnt limits"),
        ({"topics": {"a": [[float("1e300")] * 24, [1] * 24]}}, "it is no file of learnt limits"),
        ({"topics": {"a": [[1] * 24, [1] * 24]}}, "torn or was changed"),
        ({"more": 1}, "it is no file of learnt limits"),
        ({"origin": {}}, "it is no file of learnt limits"),
    ],
)
def test_what_is_no_such_file(change: dict[str, Any], why: str) -> None:
    told = json.loads(encode_file(FILE)) | change
    with pytest.raises(ValueError, match=why):
        decode_file(json.dumps(told).encode())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"5", b"\xff\xfe", b'{"v": {"a": 1}}', pytest.param(b"x" * 33_554_433, id="large")]
)
def test_what_is_something_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"torn|version|bytes"):
        decode_file(data)
