"""Probes, which examine the system and send messages beside the log workload while a run goes on."""
