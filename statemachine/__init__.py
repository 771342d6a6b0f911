"""The deterministic broker state: rows are a pure function of the log."""
