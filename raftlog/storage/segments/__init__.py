"""Segment files: their form, their indexes, and walking their frames."""
