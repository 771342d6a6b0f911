"""Rows about consumer groups: their configuration, offsets, offset resets and queue locks."""
