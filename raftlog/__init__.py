"""Consensus and the commit log: no network, no event loop."""

__distribution__ = "raftmq"  # raftmq checks this line: the folder names are generic, others use them too
