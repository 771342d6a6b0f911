"""Copies of a node, new clusters made from them, and one survivor that goes on alone.

May import `cluster.state` and below. Copies in a worker process; the service runs on the event loop. Called by
`cluster.admin`, the node and offline commands.
"""
