"""The configuration raftmq.toml: its sections, its rules, where each value came from, and the files of a node's home.

May import `raftmq_wire.errors` and `raftlog` only. Reads files, and runs on the thread of its caller: a command, or a
node that starts or reloads. Called by every folder above.
"""
