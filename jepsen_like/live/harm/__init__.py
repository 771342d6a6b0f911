"""Means of faults: power cuts, flipped bytes, attackers, and the preloaded shim."""
