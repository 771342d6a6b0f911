# What is compiled has the types of its twin (`cluster.kernel.twin`).
VERSION: int
SOURCE: str
"""SHA-256 of the `_native.pyx` that it was built from, in hex digits."""
