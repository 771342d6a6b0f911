"""Rows: their keys and families, the key-value store that holds them, batches and sums."""
