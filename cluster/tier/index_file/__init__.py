"""Index files of this node's closed segments: DATA/index, and the lane that builds them (docs/adr/0062).

The format is that of `statemachine.index_file`.
"""
