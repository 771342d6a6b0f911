"""Makes backups of a node, makes new clusters from backups, and recovers a cluster from one survivor.

A worker process copies the files; the service runs on the node's event loop. The HTTP API, the node and offline
commands call this package. It may import `cluster.tier` and the layers below it.
"""
