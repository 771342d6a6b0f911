"""`python .ci/python_speed.py`: prints the CPU time, ns, that this interpreter needs for a loop of plain Python code.

Build flags do not tell how fast an interpreter is: distributions optimise without `--enable-optimizations` in the flags
that Python reports. The least of several runs counts, because other processes disturbed it least. `.ci/preflight` runs
this with each interpreter that it finds, so it imports nothing but the standard library.
"""

from __future__ import annotations

import struct
import sys
from time import process_time_ns

RUNS = 60
"""Runs of the loop that are timed, about 1 ms each."""
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


def time_ns() -> int:
    """Returns the CPU time of one run in nanoseconds."""
    begin = process_time_ns()
    reference()
    return process_time_ns() - begin


if __name__ == "__main__":
    sys.stdout.write(f"{min(time_ns() for _ in range(RUNS))}\n")
