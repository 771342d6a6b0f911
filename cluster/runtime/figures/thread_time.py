"""Measures for how long a thread uses a core or waits for one."""

from __future__ import annotations

import time
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: nanoseconds on a core, nanoseconds of waiting for one, and the number of slices (Documentation/scheduler/
sched-stats.rst)."""


def wanted_s(schedstat: Path = SCHEDSTAT) -> float:
    """Returns the seconds for which the calling thread has used a core or waited for one. The waiting counts because a
    busy thread gets no whole core on a machine that has too few. Returns the CPU time of the thread where the system
    has no such figures."""
    try:
        used_ns, waited_ns, _ = map(int, schedstat.read_text().split())
    except (OSError, ValueError):
        return time.thread_time()
    return (used_ns + waited_ns) / 1e9
