"""Users and access rules in the simulator: a model built from the log, clients with and without rights, and the check
that compares the two."""
