"""Implements consumer groups: their members, offsets, lag, resets and queue locks, and requests to their members."""
