"""Helper processes that a node starts for long work: their command lines, and their end with the node.

The node keeps the other end of the helpers' stdin open. When the node ends, for whatever reason, the helpers end too.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import threading

NICE = 19


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns the command line that runs a module of ours. `-P` keeps the working directory off the import path,
    because that directory may contain another cluster.py."""
    return (sys.executable, "-P", "-m", module, *arguments)


def background(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns the command line for background work: the process lowers its priority before it imports the module."""
    return command(__name__, module, *arguments)


def stand_back() -> None:
    """Lowers the priority of this process: on the CPU, and on the disk if the platform has a class for that.

    It does not use SCHED_IDLE, because then a backup would never end on a machine without idle time.
    """
    os.nice(NICE)
    import psutil

    with contextlib.suppress(OSError, AttributeError, psutil.Error):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def end_with_the_node() -> None:
    """Ends this helper by SIGTERM when the node closes its end of stdin. The helper calls it after it has read its
    input."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held as the process ends
        pass
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)  # a real signal, which interrupts a call that waits


if __name__ == "__main__":
    stand_back()
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
