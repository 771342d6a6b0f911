"""Backups of a node, new clusters restored from them, and recovery of a cluster from one survivor.

May import `cluster.state` and below. Copies in a worker process; the service runs on the event loop. Called by
`cluster.admin`, the node and offline commands.
"""
