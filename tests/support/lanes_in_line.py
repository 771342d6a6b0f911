"""A lane without a thread, for tests of one service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class InLine:
    """A lane runner whose jobs are done, and told, in the call."""

    def __init__(self, name: str, lane: Any, loop: Any, on_done: Callable[[Any], None], on_failure: Any) -> None:
        self.lane, self._done = lane, on_done

    def submit(self, job: Any) -> None:
        """Runs the job at once, where a LaneRunner hands it to its thread."""
        self._done(self.lane.drain([job]))

    def close(self) -> None:
        """Does nothing: there is no thread to end."""
