"""The faults of a simulated run: the plan of when each fault begins, and the nemesis that injects and heals them."""
