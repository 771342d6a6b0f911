"""Carries Raft messages between nodes: connections, the handshake and its secret, links, admission.

May import `cluster.runtime` and below. Runs on the event loop. `cluster.members` and the folders above call it.
"""
