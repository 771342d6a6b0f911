"""Silences the traceback that Spark's Python worker prints when Spark stops reading early, for example because a
`limit` is reached before the task has returned all its rows.

Spark then closes the worker's socket. Its daemon (`pyspark.daemon`) fails to flush the rest to that socket, prints the
traceback and ends the worker. Nothing went wrong, so the message would only mislead.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

_DAEMON = "/pyspark/daemon.py"


def end_quietly() -> None:
    """Prevents this worker from printing a traceback when Spark stops reading early; any other traceback is still
    printed. Tasks call this; a second call changes nothing."""
    if traceback.print_exc is not _print_exc:
        traceback.print_exc = _print_exc  # the daemon looks the function up here, and there is no other hook


def _print_exc(*arguments: Any, **named: Any) -> None:
    if not is_end(sys.exc_info()[1]):
        traceback.print_exception(*sys.exc_info(), *arguments, **named)


def is_end(error: BaseException | None) -> bool:
    """Returns True if the error comes from the daemon writing to a worker's socket that Spark has closed."""
    trace = error.__traceback__ if isinstance(error, BrokenPipeError | ConnectionResetError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.replace("\\", "/").endswith(_DAEMON)
