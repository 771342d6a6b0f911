"""Scripted scenarios: fixed acts, and what each demands of the system."""
