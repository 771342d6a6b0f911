"""The Raft core without any I/O: no clock, socket, thread or unseeded randomness."""
