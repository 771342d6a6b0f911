"""Mending what a disk lost: ranges of the log, votes withheld, snapshots, replicas that differ.

May import `cluster.retention`, `cluster.state`, `cluster.peer` and below. Runs on the event loop, blocking work on
executor threads. Called by the node and `cluster.admin`.
"""
