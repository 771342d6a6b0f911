"""How much memory something keeps, for tests of what must not grow."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def bytes_kept(call: Callable[[], object]) -> int:
    """Returns by how many bytes there is more in memory after a call, whose result is thrown away."""
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
