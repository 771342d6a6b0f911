"""Placement: the groups of brokers as clients see them, what each is called, who leads it, and where it is reached.

May import `cluster.config` and the packages below; the node hands over what it knows of its own group. Runs on the
event loop. The broker, the protocol fronts and the node ask this room.
"""
