"""Replacements in memory of a machine's disk and database; contract tests run on them and on the real ones."""
