"""Asks the tier for messages that this node has evicted: pulls, bounds, keys and pages."""
