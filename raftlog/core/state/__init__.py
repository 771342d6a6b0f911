"""The state of one member: its log, terms, members, progress and reads."""
