"""Watches of what clients do: groups that stand still, messages that nobody gets, load that is uneven or refused."""
