"""Decides which messages a node removes, removes their files, and limits sends when the disk is nearly full.

May import `cluster.requests` and the layers below it. Decisions are made on the event loop; a lane's thread reads and
deletes. The node, `cluster.tier` and `cluster.admin` call this package.
"""
