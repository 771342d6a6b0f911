"""Object stores: one small protocol, and a directory, a cloud store or memory behind it (docs/adr/0061).

Objects are written once, whole, or replaced by compare-and-swap; nothing is ever appended, and no reader sees a part of
an object. May import `cluster.runtime` and below. Every call is a coroutine; none blocks the event loop.
"""
