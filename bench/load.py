"""The load generator of the benchmarks in this folder. Its code is in the package, for `raftmq bench`."""

from raftmq.commands.bench_load import Load, Result, run

__all__ = ["Load", "Result", "run"]
