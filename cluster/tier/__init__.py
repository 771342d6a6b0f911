"""The tier: copies of sealed segments in an object store, and reads from them.

May import `cluster.retention` and below. Runs on the event loop; disk work runs on threads of its own. Called by the
node, `cluster.backup` and `cluster.admin`; the broker reads old messages through a protocol of its own.
"""
