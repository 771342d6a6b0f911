"""Limits and services of the machine and the process in which a node runs."""
