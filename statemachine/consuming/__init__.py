"""Rows about consumer groups: their configuration, offsets, resets and queue locks."""
