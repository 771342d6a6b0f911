"""Recovery of the log at a start, in three steps."""
