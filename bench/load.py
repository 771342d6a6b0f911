"""The load generator of the benchmarks beside this file; it lives in the package, for `raftmq bench`."""

from raftmq.commands.bench_load import Load, Result, run

__all__ = ["Load", "Result", "run"]
