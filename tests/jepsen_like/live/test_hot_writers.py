"""What writers of a hot topic account for."""

from __future__ import annotations

from jepsen_like.live.probes.hot_writers import Written, wrong_rows
from tests.support.rows import each_row

WRITTEN = [Written(0, 3, frozenset({1}), frozenset({2}), {1: 1}), Written(1, 1, frozenset(), frozenset(), {2: 1})]


@each_row(
    ("bodies", "wrong"),
    [
        ([b"0/0", b"1/0"], []),
        ([b"0/2", b"1/0", b"0/0"], []),
        ([b"1/0"], ["message 0/0 is there 0 times"]),
        ([b"0/0", b"1/0", b"1/0"], ["message 1/0 is there 2 times"]),
        ([b"0/0", b"1/0", b"0/1"], ["message 0/1 is there 1 times"]),
        ([b"0/0", b"1/0", b"0/2", b"0/2"], ["message 0/2 is there 2 times"]),
        ([b"0/0", b"1/0", b"x"], ["b'x' was never sent"]),
    ],
)
def test_each_message_has_its_fate(bodies: list[bytes], wrong: list[str]) -> None:
    assert wrong_rows(WRITTEN, bodies) == wrong
