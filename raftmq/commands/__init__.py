"""The commands of `raftmq`, one file per family; `raftmq.cli` imports a file when one of its commands is called.

May import the client, local clusters and the server below. Runs on the main thread of a short process. Called by
`raftmq.cli` only.
"""
