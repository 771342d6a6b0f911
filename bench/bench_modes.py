"""The price of each mode on this machine's disk: `raftmq bench modes`, and what docs/performance.md was made with."""

from __future__ import annotations

import sys

from cluster.commands.bench import modes

ROWS = ["--size", "1024", "--size", "65536", "--in-flight", "1", "--in-flight", "64", "--seconds", "4"]

if __name__ == "__main__":
    modes([*ROWS, *sys.argv[1:]])
