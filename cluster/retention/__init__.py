"""How long the log keeps messages, and room on the disk: policy, leases, limits.

May import `cluster.state`, `cluster.replication` and below. Decides on the event loop; looks and deletes on a lane's
thread. Called by the node and `cluster.admin`.
"""
