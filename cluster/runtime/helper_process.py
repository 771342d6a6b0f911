"""Processes of our own Python that a node starts for long work: what they run, and that they end with their node.

The node keeps the other end of their stdin open. When it ends, however that happens, they do.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """What runs one of our modules, also in a directory that has a cluster.py of its own: `-P` keeps the working
    directory off the import path."""
    return (sys.executable, "-P", "-m", module, *arguments)


def end_with_the_node() -> None:
    """In the helper, when stdin is all read: from now on SIGTERM comes when the node's end of it is closed."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held as the process ends
        pass
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)  # a real one: it ends a call that waits
