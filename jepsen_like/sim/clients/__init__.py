"""Clients of the simulated cluster: each plays one kind of load and knows what it was told."""
