"""Flow: counts what the requests of a node keep in flight, and checks their limits before any work is done for a
request.

May import `cluster.runtime` and below. Runs on the event loop. `cluster.replication`, the broker and the servers of the
protocols ask its `Gate` before they take a request, and release its `Hold`s when the request ends.
"""
