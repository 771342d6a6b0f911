"""The kinds of requests (verbs) that clients may make, whatever protocol they come by. A table has one row per verb,
with all its properties.

May import `cluster.broker` and what is below it. Runs on the event loop. Called by the fronts: `cluster.remoting` and
`cluster.admin`. This package knows nothing of connections, frames and routes.
"""
