# What is compiled has the types of its twin (`raftmq_wire.kernel.twin`).
VERSION: int
SOURCE: str
"""SHA-256 of the `_native.pyx` that it was built from, in hex digits."""
