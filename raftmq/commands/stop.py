"""SIGINT and SIGTERM for commands that work in steps."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType


class Stop:
    """Handles SIGINT and SIGTERM for a command that must not be interrupted in the middle of a step.

    It notes the signal, and the command looks at `asked` between its steps. A second signal interrupts the command
    wherever it is.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False
        self._before: dict[signal.Signals, signal.Handlers | object] = {}

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which the first signal already raises KeyboardInterrupt: for a step that may block and may be
        interrupted."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        interrupts = self._at_once or self.asked
        self.asked = True
        if interrupts:
            raise KeyboardInterrupt

    def __enter__(self) -> Stop:
        self._before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]  # what signal.signal itself returned
