"""Jepsen-style tests of whole clusters: fault injection, histories and checkers."""
