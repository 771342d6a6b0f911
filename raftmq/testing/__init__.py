"""Clusters for the tests of programs that use RaftMQ: the pytest plugin, and `RaftMQCluster` for other frameworks.

It imports only the standard library, and nothing of the server: nodes run in processes of the command `raftmq`. Called
by pytest, in the test's process.
"""
