"""Replicates writes: makes log entries of requests, runs the Raft core, has entries appended and applied, and answers
the clients.

May import `cluster.peer` and below. Runs on the event loop, except for `drain` of a lane (worker thread), which runs on
that thread. Called by protocol handlers and by the node.
"""
