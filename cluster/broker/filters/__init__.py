"""SQL92 filters: which messages a consumer wants, as a condition on their properties.

`sql.SqlFilter` is the way in. Values and comparisons are RocketMQ's, with Java's number formats (docs/adr/0052). Pure:
no I/O, no clock. Called by `cluster.broker.filters.known_filters`.
"""
