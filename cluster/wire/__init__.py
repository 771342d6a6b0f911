"""The wire formats between clients and nodes: frames, codes, the stored message. Formats alone: no I/O, no state.

Imports nothing of ours, and neither an event loop nor a database: a client loads it without loading a node. Any thread.
Called by the server (`cluster.remoting`), the client (`raftmq.client`) and the simulators.
"""
