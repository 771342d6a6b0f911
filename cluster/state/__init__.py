"""Opens a node's data directory and state with bounded work, makes checkpoints, and scrubs the files.

May import `cluster.runtime` and below. Opening runs before the event loop serves clients; afterwards the checkpointer
works on a lane's thread and the scrubber in a process of its own. The node, `cluster.repair` and offline commands call
this package.
"""
