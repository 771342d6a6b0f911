"""The commands of `raftmq`, one file per family; `cluster.cli` imports each when it is called for."""
