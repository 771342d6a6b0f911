"""Index files: they list the messages of one closed segment by queue and by key (docs/index-file.md).

The code here handles bytes and numbers only. A writer passes its bytes to a function `write`; a reader tells its caller
which range it needs next, so that the same code reads a local file and an object in a store. `cluster.tier`, `raftmq
index` and readers of the tier call it.
"""
