"""Placement: says which groups of brokers there are, and which names, leaders and addresses clients use for them.

May import `cluster.config` and the packages below. The node passes in what it knows of its own group. Runs on the event
loop. The broker, the servers of the protocols and the node ask this package.
"""
