"""Replacements of a machine's disk and database, in memory. The same contract tests run on them and on the real ones.
"""
