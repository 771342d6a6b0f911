"""Users, what they may do, and who changed that: rows of the log's state (docs/adr/0091)."""
