"""Retention of messages, and disk space: policy, what holds the log, limits.

May import `cluster.state`, `cluster.replication` and below. The room decides on the event loop; it reads and deletes on
a lane's thread. The node and `cluster.admin` call it.
"""
