"""Rows: their keys and families, the store below them, batches and sums."""
