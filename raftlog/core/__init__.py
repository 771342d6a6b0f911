"""Sans-IO Raft: no clock, socket, thread or unseeded randomness."""
