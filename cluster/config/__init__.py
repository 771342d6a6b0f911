"""The configuration file raftmq.toml: its sections, its rules, the sources of its values, and the files in a node's
home folder.

It reads these files, and writes those of a local cluster, on the thread of its caller: a command, or a node that starts
or reloads. Every folder above calls it. It imports only `raftmq_wire` and `raftlog`.
"""
