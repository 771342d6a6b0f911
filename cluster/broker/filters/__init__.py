"""Implements the filters of consumers: tags, and SQL92 conditions on the properties of a message.

`sql.SqlFilter` is the entry point. Values and comparisons are RocketMQ's, with Java's number formats (docs/adr/0052).
Pure: no I/O, no clock. Called by `cluster.broker.filters.known_filters`.
"""
