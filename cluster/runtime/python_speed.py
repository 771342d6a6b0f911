"""How fast an interpreter runs plain Python code.

Build flags do not tell: distributions optimise without `--enable-optimizations` in the flags that Python reports. So a
reference loop is timed, in CPU time, and the least of several runs counts: it is the one that other processes disturbed
least.

As a script, prints that time in nanoseconds. `.ci/preflight` has the interpreters that it finds run the file, so it
must import nothing but the standard library.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from time import process_time_ns

RUNS = 30
"""Of the loop in one process; about 100 ms."""
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
    """What the path of a message is made of: calls, attributes, dictionaries, small bytes and texts, branches."""
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


def least_ns(work: Callable[[], object], runs: int) -> int:
    """CPU time of the fastest of `runs` calls, nanoseconds."""
    times = []
    for _ in range(runs):
        begin = process_time_ns()
        work()
        times.append(process_time_ns() - begin)
    return min(times)


if __name__ == "__main__":
    sys.stdout.write(f"{least_ns(reference, RUNS)}\n")
