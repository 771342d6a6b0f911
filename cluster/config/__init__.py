"""The configuration file raftmq.toml: its sections, its rules, the sources of its values, and the files in a node's
home folder.

It only reads files, on the thread of its caller: a command, or a node that starts or reloads. Every folder above calls
it. It may import only `raftmq_wire.errors` and `raftlog`.
"""
