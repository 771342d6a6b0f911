"""Watches of what clients do: consumer groups that make no progress, messages that no group reads, load that is uneven
or refused."""
