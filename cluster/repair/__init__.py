"""Repairs after a disk lost data: ranges of the log, withheld votes, snapshots, and replicas that differ.

May import `cluster.retention`, `cluster.state`, `cluster.peer` and below. Runs on the event loop, blocking work on
executor threads. Called by the node and `cluster.admin`.
"""
