"""How long the log keeps messages: what goes is decided by the leader, files are removed by each node."""
