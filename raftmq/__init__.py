"""RaftMQ: a RocketMQ-compatible message log that replicates itself with Raft.

This is the package to import; the ones beside it are its parts.
"""

from raftmq._origin import check_own_packages

check_own_packages()
