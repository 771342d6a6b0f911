"""Checks of a run: invariants of the group, of disks, of retention, of the tier and of staged writes."""
