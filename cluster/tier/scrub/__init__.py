"""Compares the store with the log's state: finds objects that are missing or damaged, and objects that no row names.

Runs on the leader, on the event loop; checksums of large objects are computed between requests. Called by the node and
by `cluster.admin`.
"""
