"""Consumers: groups, pulls, positions and what is handed to the caller."""
