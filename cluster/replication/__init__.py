"""The path of a write to a majority's disks and back: proposals, the driver, the append and apply lanes, early answers.

May import `cluster.peer` and below. Runs on the event loop, except for `drain` of a lane, which runs on the lane's
thread. Called by protocol handlers and by the node.
"""
