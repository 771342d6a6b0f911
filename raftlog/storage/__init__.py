"""The commit log and the hard state on disk."""
