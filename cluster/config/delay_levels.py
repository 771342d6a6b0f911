"""RocketMQ's messageDelayLevel: delays with units, separated by spaces."""

from __future__ import annotations

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS_MAX = 64
DELAY_MS_MAX = 365 * UNITS_MS["d"]


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds by level, level 1 first. Raises ValueError."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], UNITS_MS.get(word[-1])
        if unit is None or not (number.isascii() and number.isdigit() and len(number) <= 9):
            raise ValueError(f"{word!r} is not a number with one of the units {', '.join(UNITS_MS)}")
        levels.append(int(number) * unit)
    if not 0 < len(levels) <= LEVELS_MAX:
        raise ValueError(f"there are 1 to {LEVELS_MAX} levels, not {len(levels)}")
    if max(levels) > DELAY_MS_MAX:
        raise ValueError("a level is at most 365d")
    return tuple(levels)
