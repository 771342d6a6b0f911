"""Watches what clients do: finds consumer groups that make no progress, messages that no group reads, and load that is
uneven or refused."""
