"""Opening a node again: what is found, what is done about it, and the proof that it is bounded."""
