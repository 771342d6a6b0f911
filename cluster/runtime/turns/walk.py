"""Walks over all topics or groups, cut into slices: each call takes some steps, and the next call continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice


class Walk:
    """A walk over objects in steps, which starts again when it has come to its end. Event loop only."""

    def __init__(self, begin: Callable[[], Iterator[None]]) -> None:
        """`begin` returns a walk from the first object on, which yields after each step."""
        self._begin = begin
        self._rest: Iterator[None] | None = None

    def go_on(self, steps: int) -> None:
        """Takes that many steps; fewer at the end of the walk, after which the next call starts again."""
        if self._rest is None:
            self._rest = self._begin()
        if sum(1 for _ in islice(self._rest, steps)) < steps:
            self._rest = None

    def forget(self) -> None:
        """Makes the next call of `go_on` start from the first object."""
        self._rest = None
