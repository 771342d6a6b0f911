"""Reads topics as Arrow tables: the stored frames that pulls return become columns, without an object per message.

`read_arrow` and `read_pandas` (users import them from `raftmq`) read a range of a topic in this process. Spark's source
and `raftmq export` use the same modules. pyarrow and numpy (extra `arrow`) are imported where a table is made.
"""
