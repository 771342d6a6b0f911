"""Repairs a node after its disk has lost data: damaged ranges of the log, withheld votes, snapshots, and replicas that
differ.

May import `cluster.retention`, `cluster.state`, `cluster.peer` and below. Runs on the event loop, blocking work on
executor threads. The node and `cluster.admin` call it.
"""
