"""Clients of queue locks, and the judge of what they are told."""
