"""The parts that clients and nodes share: wire formats, the stored message, the hot path on bytes, errors for people.

It is the lowest package: it imports no other package of RaftMQ, and neither an event loop nor a database, so that a
client can load it without loading a node. No I/O, no state. Runs on any thread. Called by all other packages.
"""
