"""Runs the registry in the simulated world: its three processes, their faults, and the checks of what they say."""
