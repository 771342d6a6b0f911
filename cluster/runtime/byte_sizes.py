"""Numbers of bytes, and durations, as text."""

from __future__ import annotations


def size_of(count: int) -> str:
    """Returns a number of bytes as text for people, in powers of 1024."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def span_of(seconds: int) -> str:
    """Returns a duration as text for people, rounded down: "3 d", "3 h", "12 min", "40 s". A unit is used from twice
    its length on, so 119 seconds are "119 s"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
