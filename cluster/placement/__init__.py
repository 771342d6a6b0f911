"""Placement: the groups of brokers as clients see them: their names, leaders and addresses.

May import `cluster.config` and the packages below; the node hands over what it knows of its own group. Runs on the
event loop. The broker, the servers of the protocols and the node ask this package.
"""
