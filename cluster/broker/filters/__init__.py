"""SQL92 filters: a consumer's condition on the properties of the messages that it wants.

`sql.SqlFilter` is the entry point. Values and comparisons are RocketMQ's, with Java's number formats (docs/adr/0052).
Pure: no I/O, no clock. Called by `cluster.broker.filters.known_filters`.
"""
