"""Reads from the tier: ranges of objects through a bounded cache, and messages of queues.

Every answer was compared with a checksum from the log's state or from an index file. Event loop only; files of the
cache are read and written on threads. Called by the node, which hands it to the broker.
"""
