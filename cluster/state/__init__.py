"""Opening a node with bounded work: the data directory, the state, checkpoints, scrubbing.

May import `cluster.runtime` and below. Opening runs before the event loop serves clients; afterwards the checkpointer
works on a lane's thread, the scrubber in a process of its own. Called by the node, by `cluster.repair` and by offline
commands.
"""
