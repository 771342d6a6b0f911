"""Tools that cause faults: power failures, flipped bytes, attackers, and the preloaded shim."""
