"""Reads messages of this node by rows of a queue, by position and by key; and defines the values of a pull."""
