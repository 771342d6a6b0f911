"""Scripted scenarios (stories): fixed acts, and what each demands of the system."""
