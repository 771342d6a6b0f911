"""Copies of the log's state in the tier, from which a cluster is restored when every node is lost (docs/adr/0067).

May import `cluster.tier.segment_reads`, `cluster.tier.stored_files`, `cluster.tier.store`, `cluster.state` and below.
Called by `cluster.tier` and `cluster.backup`.
"""
