"""Faults that an operator or a test injects."""
