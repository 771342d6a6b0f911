"""Messages read out of the log: what is read for them, and what comes of it."""

from __future__ import annotations

from itertools import accumulate, chain

from cluster.broker.reads.log_reads import GAP_BYTES, WHOLE_BYTES, read_body
from raftmq_wire.checksums import crc32c
from statemachine.payload import ITEM
from tests.support.rows import each_row

SIZE = 100


class Log:
    """The bytes of a log, and how often and how much of it was read."""

    def __init__(self, size: int) -> None:
        self._bytes = b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))
        self.calls: list[int] = []

    def item(self, position: int) -> bytes:
        """The packed row of a message that lies there."""
        return ITEM.pack(position, SIZE, crc32c(self.at(position)), 0, 0)

    def at(self, position: int) -> bytes:
        """Returns the message at the position."""
        return self._bytes[position : position + SIZE]

    def read_log(self, position: int, size: int) -> bytes:
        """Reads as `log_reads.Log.read_log` does."""
        self.calls.append(size)
        return self._bytes[position : position + size]


@each_row(
    ("gaps", "calls"),
    [
        ([0] * 200, [201 * SIZE]),
        ([0] * 100 + [4 * WHOLE_BYTES] + [0] * 99, [101 * SIZE, 100 * SIZE]),
        ([GAP_BYTES] * 60, [61 * SIZE + 60 * GAP_BYTES]),
        ([GAP_BYTES + 1] * 60, [SIZE] * 61),
        # Of few bytes altogether: one read, although one of the gaps is longer than a read is worth.
        ([0] * 30 + [20 * GAP_BYTES], [32 * SIZE + 20 * GAP_BYTES]),
        ([0, 20 * GAP_BYTES], [2 * SIZE, SIZE]),
    ],
    ids=["adjacent", "two batches far apart", "short gaps", "long gaps", "a short span", "few messages"],
)
def test_a_gap_is_read_along_where_that_costs_less_than_another_read(gaps: list[int], calls: list[int]) -> None:
    places = list(accumulate(chain([64], (SIZE + gap for gap in gaps))))
    log = Log(places[-1] + SIZE)
    body, count = read_body(log, b"".join(map(log.item, places)))
    assert (body, count) == (b"".join(map(log.at, places)), len(places))
    assert log.calls == calls
