"""RaftMQ: a RocketMQ-compatible message log that replicates itself with Raft.

This is the package to import::

    with raftmq.connect() as mq:
        mq.send("orders", b"two teas", key="42", tag="new")
"""

from typing import TYPE_CHECKING

from raftmq.server_home import rooms

__path__ += rooms()  # the server's distribution has the other half of this package; its processes find it here

if TYPE_CHECKING:
    __version__: str
    """The version of the distribution that is installed."""

    from raftmq.arrow.tables import read_arrow, read_pandas
    from raftmq.client import (
        Admin,
        AsyncAdmin,
        AsyncCheck,
        AsyncClient,
        AsyncConsumer,
        AsyncProducer,
        AsyncTransaction,
        AsyncTransactionProducer,
        Check,
        Client,
        Consumer,
        Delay,
        Denied,
        Failed,
        FlushResult,
        FoundMessages,
        GroupOffset,
        IncompleteUser,
        Message,
        MessageOptions,
        NotFound,
        OnRetry,
        Position,
        Producer,
        PullResult,
        PullStatus,
        QueueInfo,
        RaftMQError,
        Refused,
        Resolution,
        Retry,
        SendOptions,
        SendResult,
        Start,
        Tls,
        TopicIdentity,
        TopicInfo,
        Transaction,
        TransactionProducer,
        Unknown,
        Unreachable,
        aconnect,
        connect,
    )

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncCheck",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "Check",
    "Client",
    "Consumer",
    "Delay",
    "Denied",
    "Failed",
    "FlushResult",
    "FoundMessages",
    "GroupOffset",
    "IncompleteUser",
    "Message",
    "MessageOptions",
    "NotFound",
    "OnRetry",
    "Position",
    "Producer",
    "PullResult",
    "PullStatus",
    "QueueInfo",
    "RaftMQError",
    "Refused",
    "Resolution",
    "Retry",
    "SendOptions",
    "SendResult",
    "Start",
    "Tls",
    "TopicIdentity",
    "TopicInfo",
    "Transaction",
    "TransactionProducer",
    "Unknown",
    "Unreachable",
    "aconnect",
    "connect",
    "read_arrow",
    "read_pandas",
]

if not TYPE_CHECKING:  # so that a type checker knows exactly the names that exist

    def __getattr__(name: str) -> object:
        """Imports the client when one of its names is first used, so that `raftmq --help` does not load it."""
        if name == "__version__":
            from importlib.metadata import version

            return version("raftmq")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in ("read_arrow", "read_pandas"):
            import raftmq.arrow.tables

            return getattr(raftmq.arrow.tables, name)
        import raftmq.client

        return getattr(raftmq.client, name)

    def __dir__() -> list[str]:
        return sorted(__all__)
