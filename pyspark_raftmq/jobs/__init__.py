"""Jobs over topics that Spark runs: `raftmq spark JOB`. Each takes a session and returns a report."""
