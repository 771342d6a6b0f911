"""Replicates writes: makes log entries of requests, runs the Raft core, appends and applies entries, and answers the
clients.

May import `cluster.peer` and below. Runs on the event loop, except for `drain` of a lane (worker thread), which runs on
that thread. Called by protocol handlers and by the node.
"""
