"""The part of SVG that the report needs: elements with escaped attributes and text, axes, lines over bins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import NamedTuple

Scale = Callable[[float], float]
"""A function from a value to a coordinate."""


def mark(name: str, text: str = "", tip: str = "", **attributes: object) -> str:
    """Returns one SVG element. `tip` is shown when the pointer rests on it; underscores in names become hyphens."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    inside = (f"<title>{escape(tip)}</title>" if tip else "") + escape(text)
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def drawing(width: float, height: float, marks: Iterable[str], label: str) -> str:
    """Returns the SVG of a drawing that scales with the page."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>'
    )


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Returns a scale that maps [low, high] linearly to [start, end]."""
    span = (high - low) or 1
    return lambda value: start + (value - low) / span * (end - start)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Returns a logarithmic scale from [low, high] to [start, end]; values below `low` count as `low`."""
    inner = linear(math.log10(low), math.log10(high), start, end)
    return lambda value: inner(math.log10(max(value, low)))


def ticks(high: float, about: int) -> list[float]:
    """Returns about `about` round values from 0 to `high`."""
    if high <= 0:
        return [0.0]
    raw = high / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [step * i for i in range(int(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> tuple[list[float], float, float]:
    """Returns (ticks, lowest, highest) of a logarithmic axis that includes both values; its ticks are whole powers of
    ten."""
    first = math.floor(math.log10(low))
    last = max(first + 1, math.ceil(math.log10(high)))
    return [10.0**power for power in range(first, last + 1)], 10.0**first, 10.0**last


class Panel(NamedTuple):
    """One plot: its position, and the scales that turn values into coordinates."""

    top: float
    bottom: float
    left: float
    right: float
    x: Scale
    y: Scale

    def frame(self, title: str, values: Iterable[float], unit: Callable[[float], str]) -> Iterator[str]:
        """Yields the title, horizontal grid lines and their labels."""
        yield mark("text", title, x=self.left, y=self.top - 8, class_="title")
        for value in values:
            y = round(self.y(value), 1)
            yield mark("line", x1=self.left, x2=self.right, y1=y, y2=y, class_="grid")
            yield mark("text", unit(value), x=self.left - 8, y=y + 4, class_="tick end")

    def line(self, points: Iterable[tuple[float, float | None]], class_: str, tip: str) -> str:
        """Returns a line that is interrupted where there is no value; a lone point is drawn as a dot."""
        path: list[str] = []
        is_down = False
        for moment, value in points:
            if value is None:
                is_down = False
                continue
            x, y = round(self.x(moment), 1), round(self.y(value), 1)
            path.append(f"L{x:g} {y:g}" if is_down else f"M{x:g} {y:g}h.01")
            is_down = True
        return mark("path", tip=tip, d="".join(path), class_=f"line {class_}")


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))
