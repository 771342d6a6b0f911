"""Clients of the simulated cluster. Each produces one kind of load and checks the answers that it gets."""
