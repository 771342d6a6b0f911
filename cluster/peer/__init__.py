"""Raft messages between nodes: connections, the handshake and its secret, links, who may speak.

May import `cluster.runtime` and below. Runs on the event loop. Called by `cluster.replication` and the folders above.
"""
