"""Jobs over topics, run by Spark: `raftmq spark JOB`. Each takes a session and returns a report."""
