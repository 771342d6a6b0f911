"""The hash of a tag, as consume queues store it and clients compute it."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Java's String.hashCode: 32-bit signed, over UTF-16 units."""
    h = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        h = (31 * h + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h
