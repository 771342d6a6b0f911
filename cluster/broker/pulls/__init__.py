"""Answers pulls: at once from the applied state, in steps where there is a filter, or when messages come."""
