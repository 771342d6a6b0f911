"""Keeps users, their secrets, rules and tokens, and the mode in which rules are enforced: encryption, changes,
denials."""
