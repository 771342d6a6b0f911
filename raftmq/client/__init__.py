"""The Python client of RaftMQ, which speaks RocketMQ's remoting protocol. Users import its names from `raftmq`.

It may import `raftmq_wire`, and nothing of the server. The async API runs on the user's event loop, the blocking API on
an event loop in another thread (`raftmq.client.loop_thread`). Users' programs, the commands, the Spark source and the
demo use it.
"""

from raftmq.client.admin import AsyncAdmin, GroupOffset, QueueInfo, TopicInfo
from raftmq.client.client import AsyncClient, aconnect
from raftmq.client.consuming.consumer import AsyncConsumer
from raftmq.client.consuming.offsets import Start
from raftmq.client.consuming.pull import PullResult, PullStatus
from raftmq.client.environment import IncompleteUser
from raftmq.client.errors import Denied, Failed, NotFound, RaftMQError, Refused, Unknown, Unreachable
from raftmq.client.message import FoundMessages, Message, MessageOptions, SendOptions, SendResult
from raftmq.client.producing.delivery_delay import Delay
from raftmq.client.producing.pipeline import FlushResult
from raftmq.client.producing.producer import AsyncProducer
from raftmq.client.producing.transaction_end import Resolution
from raftmq.client.producing.transaction_producer import AsyncCheck, AsyncTransaction, AsyncTransactionProducer
from raftmq.client.retries import OnRetry, Retry
from raftmq.client.sync import Client, Consumer, Producer, connect
from raftmq.client.sync_admin import Admin
from raftmq.client.sync_transactions import Check, Transaction, TransactionProducer
from raftmq.client.tls import Tls
from raftmq_wire.topic_identity import Position, TopicIdentity

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
]
