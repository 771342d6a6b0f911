"""Traces of consumer groups: their offsets, resets and queue locks."""
