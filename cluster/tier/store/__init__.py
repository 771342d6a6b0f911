"""Object stores: one small protocol, implemented by a directory, a cloud store and memory (docs/adr/0061).

An object is written once and whole, or replaced by compare-and-swap. Nothing is ever appended, and no reader sees a
part of an object. May import `cluster.runtime` and below. Every call is a coroutine; none blocks the event loop.
"""
