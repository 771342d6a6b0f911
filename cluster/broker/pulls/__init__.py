"""Answers pulls: at once from the applied state, in steps if there is a filter, or when messages arrive."""
