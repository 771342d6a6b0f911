"""The Python client, speaking RocketMQ remoting. Users import these names from `raftmq`."""

from cluster.client.admin import AsyncAdmin, GroupOffset, QueueInfo, TopicInfo
from cluster.client.client import AsyncClient, aconnect
from cluster.client.consumer import AsyncConsumer
from cluster.client.errors import Failed, NotFound, RaftMQError, Refused, Unknown, Unreachable
from cluster.client.message import Message, SendResult
from cluster.client.producer import AsyncProducer
from cluster.client.pull import PullResult, PullStatus
from cluster.client.sync import Client, Consumer, Producer, connect
from cluster.client.sync_admin import Admin

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
