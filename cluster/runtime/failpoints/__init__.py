"""Failpoints: faults that an operator or a test plants at named places."""
