"""Reads messages that this node has evicted, that is, that are kept only in the tier: for pulls, searches by time and
by key, and pages."""
