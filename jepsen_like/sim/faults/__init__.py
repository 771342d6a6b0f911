"""Faults of a run: the plan, and the nemesis that carries it out."""
