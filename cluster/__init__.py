"""A running node and its protocols."""
