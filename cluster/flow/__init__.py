"""Flow: what the requests of a node keep in flight, and the limits that they are asked against before any work.

May import `cluster.runtime` and below. Runs on the event loop. `cluster.replication`, the broker and the fronts ask its
`Gate` and give back its `Hold`s.
"""
