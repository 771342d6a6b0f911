"""The full-node simulator: runs complete nodes and clients, unchanged, on one seeded event loop in virtual time."""
