"""Measures how fast an interpreter runs plain Python code.

Build flags do not tell: distributions optimise without `--enable-optimizations` in the flags that Python reports. So a
reference loop is timed in CPU time, and the least of several runs counts, because other processes disturbed it least.
Two interpreters on one machine are compared by that time. For a single interpreter, `slowness` divides it by the time
of other work on the same processor that does not involve the interpreter.

As a script, this module prints that time in nanoseconds. `.ci/preflight` runs the file with the interpreters that it
finds, so the module must import nothing but the standard library.
"""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns

RUNS = 60
"""Runs of the loop that are timed, about 1 ms each."""
RUNS_AT_START = 8
OPTIMISED = 21.0
"""Time of the loop divided by that of the yardstick, under an optimised CPython 3.11."""
SLOW = 2.0
"""A slowness from which on an interpreter is called slow. Measured (docs/performance.md): 1.0 with Debian's build, 1.4
without profile-guided optimisation, 3.4 with a debug build. The difference between the first two is smaller than
between processors, so it shows only between interpreters on one machine."""
_ITEMS = 1500
_HEAD = struct.Struct(">IHQ")


class _Queue:
    __slots__ = ("items", "size")

    def __init__(self) -> None:
        self.items: dict[int, bytes] = {}
        self.size = 0

    def add(self, key: int, item: bytes) -> int:
        self.items[key] = item
        self.size += len(item)
        return self.size


def reference() -> int:
    """Runs the reference loop: calls, attributes, dictionaries, small bytes and texts, branches, as on the path of a
    message."""
    queue = _Queue()
    total = 0
    for number in range(_ITEMS):
        key = number & 255
        head = _HEAD.pack(number, key, total)
        total = queue.add(key, head + b"body") & 0xFFFFFF
        name = f"{key}:{number}"
        left, _, right = name.partition(":")
        if left != right and total > len(queue.items.get(key ^ 1, b"")):
            total += int(right) + sum(head[:4])
    return total


def time_ns(work: Callable[[], object]) -> int:
    """Returns the CPU time of one call in nanoseconds."""
    begin = process_time_ns()
    work()
    return process_time_ns() - begin


def slowness(runs: int = RUNS) -> float:
    """Returns the time of this interpreter for the reference loop as a multiple of an optimised CPython 3.11's: about
    1.

    The yardstick is msgspec formatting JSON: a loop over bytes in C that does not call the interpreter, and that is the
    same machine code for all builds of one Python version. zlib would not do, because its speed depends on its build.

    Returns 0 if it cannot be measured: under a profiler of CPU time, Linux counts that time in steps of several
    milliseconds.
    """
    import msgspec

    document = msgspec.json.encode([{f"key {n}": [n, n * n, f"text {n}", True, None]} for n in range(400)])

    def yardstick() -> None:
        msgspec.json.format(document, indent=2)

    pairs = [(time_ns(reference), time_ns(yardstick)) for _ in range(runs)]
    loop_ns, yardstick_ns = min(loop for loop, _ in pairs), min(yard for _, yard in pairs)
    return loop_ns / yardstick_ns / OPTIMISED if yardstick_ns else 0.0


_ANEW = (
    "make distclean, make setup PYTHON=/path/to/it"
    if (Path(__file__).parents[3] / "Makefile").exists()
    else "/path/to/it -m pip install 'raftmq[server]'"
)
"""The commands that install this server with another Python, from its source tree, or from its distribution."""


def finding(times: float) -> str:
    """Returns the warning for an operator about an interpreter of the slowness `times`; empty if it is not slow."""
    if times < SLOW:
        return ""
    return (
        f"python {platform.python_version()} at {sys.executable} takes {times:.1f} times as long for plain code as an "
        "optimised build: it is a debug build, was built without optimisation, or runs under a tool; "
        f"install another Python, then {_ANEW}"
    )


def finding_at_start() -> str:
    """Returns the warning about this interpreter, in about 10 ms. Only if it seems slow is it measured for longer."""
    seems = finding(slowness(RUNS_AT_START))
    return seems and finding(slowness())


if __name__ == "__main__":
    sys.stdout.write(f"{min(time_ns(reference) for _ in range(RUNS))}\n")
