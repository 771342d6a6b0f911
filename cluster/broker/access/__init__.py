"""Users: their secrets, and changes of users, rules, tokens and the mode."""
