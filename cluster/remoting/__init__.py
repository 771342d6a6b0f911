"""The RocketMQ remoting protocol: connections, and for each request its decoding, the call of the broker, its answer.

May import `cluster.broker` and below. Runs on the event loop. Clients' connections call it, and the node composes it.
"""
