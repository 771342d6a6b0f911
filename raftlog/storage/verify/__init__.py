"""The offline check of a stopped node's files."""
