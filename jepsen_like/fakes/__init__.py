"""In-memory replacements of a machine's disk and database. The same contract tests run on them and on the real ones."""
