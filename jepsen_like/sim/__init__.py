"""The full-node simulator: whole nodes and clients, unchanged, on one seeded event loop in virtual time."""
