"""Numbers of bytes as text."""

from __future__ import annotations


def size_of(count: int) -> str:
    """Returns a number of bytes as text for people, in powers of 1024."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
