"""Requests, whatever front they came through: one row per verb says all that is known of it.

May import `cluster.broker` and what is below it. Runs on the event loop. Called by the fronts: `cluster.remoting` and
`cluster.admin`. It knows no connection, no frame and no route.
"""
