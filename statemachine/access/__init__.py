"""Users, their rights, and an audit of every change to them, stored as rows of the replicated state (docs/adr/0091)."""
