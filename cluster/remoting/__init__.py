"""The RocketMQ remoting protocol: connections, and for each request its decoding, the call of the broker, its answer.

May import `cluster.broker` and below. Runs on the event loop. Called by clients' connections and by the node, which
composes it.
"""
