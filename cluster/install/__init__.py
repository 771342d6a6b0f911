"""A node too far behind for the log: a peer's checkpoint, the log above it, a restart in place, then the older log."""
