"""Reads messages that this node has evicted, that is, that are kept only in the tier (copies of the log in an object
store, `cluster.tier`): for pulls, searches by time and by key, and pages."""
