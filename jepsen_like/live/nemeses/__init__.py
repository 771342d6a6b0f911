"""Nemeses: the faults of a run, one file for each family, and the interface that they share."""
