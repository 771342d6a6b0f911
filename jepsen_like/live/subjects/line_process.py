"""Runs a Python module in a separate process beside the harness, and exchanges lines of text with it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec

from jepsen_like.live.subjects.processes import Processes

_END_S = 10.0


class LineProcess:
    """A process that runs a Python module. The module reads its orders, as JSON, from the first line of standard input,
    prints lines, and ends when standard input does."""

    def __init__(
        self,
        processes: Processes,
        module: str,
        on_line: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
        *,
        with_errors: bool = False,
    ) -> None:
        """Starts the process. `on_line` is called with each line that it prints, and `on_end` when it prints no more,
        both on another thread. `with_errors`: what it writes to standard error counts as printed."""
        self._on_line, self._on_end = on_line, on_end
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else None,
            start_new_session=True,
            text=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._input, self._output = self._child.stdin, self._child.stdout
        processes.own(self._child.pid)
        self._listener = threading.Thread(target=self._listen, name=f"raftmq-{module}", daemon=True)
        self._listener.start()

    def order(self, orders: msgspec.Struct) -> None:
        """Gives the process its orders. Raises BrokenPipeError if it has ended."""
        self.say(msgspec.json.encode(orders).decode())

    def say(self, line: str) -> None:
        """Writes a line to its standard input. Raises BrokenPipeError if it has ended."""
        self._input.write(f"{line}\n")
        self._input.flush()

    @property
    def is_heard(self) -> bool:
        """False once the process prints no more."""
        return self._listener.is_alive()

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, whether it was told to or not."""
        return self._child.poll() is not None

    def end(self) -> None:
        """Closes its standard input, and kills it if it does not end in time."""
        with contextlib.suppress(BrokenPipeError):  # the process has ended without reading a line
            self._input.close()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._listener.join(_END_S)
        self._output.close()

    def _listen(self) -> None:
        for line in self._output:
            self._on_line(line)
        self._on_end()
