"""The lowest layer of a node: environment, clock, lanes, alarms, failpoints, frames, key files, leases, logs, limits.

May import `cluster.config` and the packages below. Lanes, and a few modules that say so, have threads of their own; all
else runs on the thread of its caller, mostly the event loop. Every folder above calls it.
"""
