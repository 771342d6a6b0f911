"""Runs a second group of full nodes in the simulated world, with its machines, clients, faults and checks."""
