"""Probes: they examine the system and send messages in addition to the log workload while a run goes on."""
