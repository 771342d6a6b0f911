"""Faults of a run, one file for each family, and the seam that they share."""
