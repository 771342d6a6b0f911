"""Shows the stages of a command that takes a while: on a terminal, as a line that changes; else as a line when a stage
begins, and another one every AGAIN_S seconds while its figures change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from raftmq.local.membership import Tell

AGAIN_S = 5.0
"""The seconds after which a line is printed again if only its figures have changed."""
_FIGURES = re.compile(r"[\d,.]+ (?=entries)")


@contextmanager
def stages(out: Console, first: str) -> Iterator[Tell]:
    """Yields the function that shows a stage on `out`, which is stderr."""
    if out.is_terminal:
        with out.status(first) as spinner:
            yield spinner.update
        return
    yield Lines(lambda text: out.print(text, markup=False), time.monotonic)


class Lines:
    """Prints a stage when it begins, and every AGAIN_S seconds while its figures change."""

    def __init__(self, write: Tell, clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._shown = ""
        self._at = float("-inf")

    def __call__(self, stage: str) -> None:
        """Shows that the command is at this stage."""
        now = self._clock()
        if stage == self._shown:
            return
        if _FIGURES.sub("", stage) == _FIGURES.sub("", self._shown) and now - self._at < AGAIN_S:
            return
        self._write(stage)
        self._shown, self._at = stage, now
