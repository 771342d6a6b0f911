"""RaftMQ: a RocketMQ-compatible message log that replicates itself with Raft.

This is the package to import; the ones beside it are its parts::

    with raftmq.connect() as mq:
        mq.send("orders", b"two teas", key="42", tag="new")
"""

from raftmq._origin import check_own_packages

check_own_packages()

# After the check: a foreign `cluster` would fail here, and not say why.
from cluster.client import (  # noqa: E402
    Admin,
    AsyncAdmin,
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    Client,
    Consumer,
    Failed,
    GroupOffset,
    Message,
    NotFound,
    Producer,
    PullResult,
    PullStatus,
    QueueInfo,
    RaftMQError,
    Refused,
    SendResult,
    TopicInfo,
    Unknown,
    Unreachable,
    aconnect,
    connect,
)

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "Client",
    "Consumer",
    "Failed",
    "GroupOffset",
    "Message",
    "NotFound",
    "Producer",
    "PullResult",
    "PullStatus",
    "QueueInfo",
    "RaftMQError",
    "Refused",
    "SendResult",
    "TopicInfo",
    "Unknown",
    "Unreachable",
    "aconnect",
    "connect",
]
