"""Retention of messages, and disk space: policy, leases, limits.

May import `cluster.state`, `cluster.replication` and below. Decides on the event loop; reads and deletes on a lane's
thread. Called by the node and `cluster.admin`.
"""
