"""Measures for how long a thread uses a core or waits for one."""

from __future__ import annotations

import time
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: nanoseconds on a core, nanoseconds of waiting for one, and the number of slices (Documentation/scheduler/
sched-stats.rst)."""


def wanted_s(schedstat: Path = SCHEDSTAT) -> float:
    """Returns the seconds for which the calling thread has used a core or waited for one: on a machine with too few, a
    busy thread uses no whole core. Where the system has no such figures, returns the CPU time of the thread."""
    try:
        used_ns, waited_ns, _ = map(int, schedstat.read_text().split())
    except (OSError, ValueError):
        return time.thread_time()
    return (used_ns + waited_ns) / 1e9
