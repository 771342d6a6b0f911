"""The parts that clients and nodes share: wire formats, the stored message, the hot path on bytes, errors for people.

The bottom of the tree: it imports nothing of ours, and neither an event loop nor a database, so that a client loads it
without loading a node. No I/O, no state. Any thread. Called by all other packages.
"""
