"""Index files: where the messages of one closed segment lie, by queue and by key (docs/index-file.md).

Bytes and numbers only: writers are given a `write`, readers say which range they need next, so that the same code reads
a local file and an object in a store. Called by `cluster.tier`, by `raftmq index` and by readers of the tier alone.
"""
