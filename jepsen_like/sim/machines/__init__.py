"""Simulated machines: the event loop in virtual time, disk, network, clock, lanes and the object store."""
