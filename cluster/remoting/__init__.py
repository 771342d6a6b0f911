"""Serves the RocketMQ remoting protocol: accepts connections, decodes requests, calls the broker, and encodes answers.

May import `cluster.broker` and below. Runs on the event loop. The node puts its parts together.
"""
