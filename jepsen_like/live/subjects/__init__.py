"""Systems under test, their processes, and the proxies between their nodes."""
