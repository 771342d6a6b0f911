"""Clusters on one machine: their directories, processes, ports and members.

May import the client's discovery and the server's configuration. Runs on the main thread of a command, a test or the
demo, and blocks. Called by `raftmq.commands`, benchmarks, tests and `jepsen_like`.
"""
