"""The end of Spark's Python worker when Spark stops reading: a `limit` is reached before the task has given all it has.

Spark then closes the worker's socket. Its daemon (`pyspark.daemon`) fails to flush what is left for that socket,
prints the traceback and ends the worker. Nothing went wrong, and nobody is to look for an error there.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

_DAEMON = "/pyspark/daemon.py"


def end_quietly() -> None:
    """Has this worker print no traceback of such an end; any other is printed. Called by tasks; again is no change."""
    if traceback.print_exc is not _print_exc:
        traceback.print_exc = _print_exc  # the daemon looks it up here, and tells its workers of nothing else


def _print_exc(*arguments: Any, **named: Any) -> None:
    if not is_end(sys.exc_info()[1]):
        traceback.print_exception(*sys.exc_info(), *arguments, **named)


def is_end(error: BaseException | None) -> bool:
    """Returns True if the daemon itself wrote to a worker's socket that Spark has closed."""
    trace = error.__traceback__ if isinstance(error, BrokenPipeError | ConnectionResetError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.replace("\\", "/").endswith(_DAEMON)
