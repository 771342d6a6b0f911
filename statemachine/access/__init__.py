"""Users, their rights, and an audit of every change to them: rows of the log's state (docs/adr/0091)."""
