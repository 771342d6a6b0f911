"""Segment files: their format, their indexes, and walking their frames."""
