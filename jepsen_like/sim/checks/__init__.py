"""Checks of a simulated run: invariants of the Raft group, of disks, of retention, of tiered storage and of staged
writes."""
