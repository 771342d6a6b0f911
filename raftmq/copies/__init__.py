"""Reads topics from a copy of the log, without a cluster: a backup, a stopped node's directory, or the tier.

A copy has an index that says where the messages of each queue lie. A reader takes a part of a segment at a time, and
compares every message with the checksum that its queue has for it. Needs numpy and pyarrow (extra `arrow`) where rows
are made.
"""
