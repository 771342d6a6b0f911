"""Keeps the membership of the cluster: checks and makes changes, prepares new nodes, and moves leadership to preferred
nodes.

It runs on the event loop; a new node's directory is made in a command. The node, `cluster.admin` and local clusters
call this package. It may import `cluster.peer` and the layers below it.
"""
