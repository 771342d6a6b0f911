"""Rows about the cluster as a whole: its level, its members and its configuration."""
