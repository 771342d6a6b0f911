"""Replacements in memory of a machine's disk and database. Contract tests run on them and on the real ones."""
