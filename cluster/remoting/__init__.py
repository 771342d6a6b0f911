"""The RocketMQ remoting protocol: connections, codec, and a handler for each request.

May import `cluster.replication`, `cluster.members` and below. Runs on the event loop. Called by clients' connections
and by the node, which composes it.
"""
