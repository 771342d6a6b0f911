"""Backups of a node, new clusters restored from them, and recovery of a cluster from one survivor.

May import `cluster.state` and below. A worker process copies; the service runs on the event loop. `cluster.admin`, the
node and offline commands call this package.
"""
