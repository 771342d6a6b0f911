"""Tables that are made of topics: which messages a table lacks, the files by day, and their commits.

`raftmq table run` keeps a Delta or an Iceberg table up to date in one process; `raftmq spark export` and `raftmq spark
table` keep a Delta table with Spark's tasks. All of them use these modules. deltalake and pyarrow (extra `table`) are
imported where a table is opened; modules that begin with `iceberg_`, and `kept_iceberg`, import pyiceberg (extra
`iceberg`) themselves, and only `formats` imports them.
"""
