"""Reads messages of this node: by rows of a queue, by position, by key; and the values of a pull."""
