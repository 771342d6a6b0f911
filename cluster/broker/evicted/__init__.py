"""Asks the tier for messages that this node has evicted, that is, keeps only in the tier: pulls, bounds, keys and
pages."""
