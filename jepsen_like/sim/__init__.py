"""The full-node simulator: runs whole nodes and clients, unchanged, on one seeded event loop in virtual time."""
