"""A running node and its clients."""
