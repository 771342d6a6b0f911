"""Changes users, their secrets, rules and tokens, and the mode in which rules are enforced. Encrypts secrets, limits
guesses of secrets and the rate of new tokens, and counts denied requests."""
