"""What is looked at and sent beside the log workload while a run goes on."""
