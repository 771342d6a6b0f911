"""Stand-ins in memory for a machine's disk and database; contract tests hold them to the real ones."""
