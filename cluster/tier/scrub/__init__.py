"""Compares the store with the log's state: what is named and missing or damaged, and what is there and not named.

Runs on the leader, on the event loop; checksums of large objects are computed between requests. Called by the node and
by `cluster.admin`.
"""
