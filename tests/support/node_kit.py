"""The common parts of tests of a node without a network: entries for its log, and time that stands still."""

from __future__ import annotations

from raftlog.frame import genesis_entry, make_entry, tail_after
from raftlog.types import EMPTY_TAIL, Entry, EntryType, LogTail
from statemachine import commands, payload
from statemachine.topics.topics import CreateTopic

GROUP = 1
START_MS = 1_700_000_000_000
ROWS = 8
"""Messages of an entry."""


def entries_after(tail: LogTail, count: int, *, segment_size: int, term: int = 1) -> list[Entry]:
    """`count` entries that follow: a topic first, then messages of its two queues, about 200 bytes each."""
    entries = []
    for _ in range(count):
        number = tail.index + 1
        if number <= 1:
            kind, data = EntryType.COMMAND, commands.pack([CreateTopic({"name": "t"}, False)])
        else:
            base = (number - 2) // 2 * ROWS
            items = b"".join(
                payload.ITEM.pack(tail.end_position + i, 9, number * 31 + i, -5, START_MS + number) for i in range(ROWS)
            )
            run = payload.Run(1, number % 2, base, ROWS, 0, items)
            kind, data = EntryType.MESSAGES, payload.encode([b"m" * 9 * ROWS], ROWS, [run], (), (), b"")
        entry = make_entry(
            tail,
            term=term,
            entry_type=kind,
            payload=data,
            timestamp_ms=START_MS + number,
            group_id=GROUP,
            segment_size=segment_size,
        )
        tail = tail_after(tail, entry)
        entries.append(entry)
    return entries


WINDOW_BYTES = 84_500
"""Payload of the entry that 64 sends of 1 KiB become."""


def no_ops(count: int, size: int = 10) -> list[Entry]:
    """Entries 1 to `count` of a log, with payloads of `size` bytes."""
    tail = tail_after(EMPTY_TAIL, genesis_entry(b"", timestamp_ms=0, group_id=GROUP))
    entries = []
    for _ in range(count):
        entry = make_entry(
            tail,
            term=1,
            entry_type=EntryType.NOOP,
            payload=bytes(size),
            timestamp_ms=0,
            group_id=GROUP,
            segment_size=1 << 24,
        )
        tail = tail_after(tail, entry)
        entries.append(entry)
    return entries


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return START_MS + self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_s(self) -> float:
        return self.now_ms / 1000
