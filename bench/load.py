"""The load generator of the benchmarks beside this file; it lives in the package, for `raftmq bench`."""

from cluster.bench.load import Load, Result, run

__all__ = ["Load", "Result", "run"]
