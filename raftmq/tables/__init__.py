"""Tables that are made of topics: which messages a table lacks, the files by day, and their commits.

`raftmq table run` keeps a Delta table up to date in one process; `raftmq spark export` and `raftmq spark table` do it
with Spark's tasks. All of them use these modules. deltalake and pyarrow (extra `table`) are imported where a table is
opened.
"""
