"""Fault injection, histories and checkers."""
