"""Requests that are valid frames and make no sense: every code with fields that are missing, huge or contradictory.

They write, delete and commit only names of their own; topics of other clients they only read. The frames themselves are
valid, so a node must answer each of these requests, once, and nothing may change for any other client.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from cluster.broker.reads.pull_values import SUSPEND_MS_MAX
from jepsen_like.hostile import almost_valid
from jepsen_like.sim.clients.client_machines import TOPIC
from raftmq_wire.codes import RequestCode as Code

CODES = (
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE,
    Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID, Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME,
    Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.DELETE_SUBSCRIPTIONGROUP, Code.HEART_BEAT, Code.UNREGISTER_CLIENT,
    Code.GET_CONSUMER_LIST_BY_GROUP, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_KV_CONFIG,
    Code.GET_KVLIST_BY_NAMESPACE, Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_TOPIC_CONFIG, Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Code.QUERY_ASSIGNMENT, Code.GET_CONSUME_STATS, Code.GET_TOPIC_STATS_INFO, Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.GET_BROKER_RUNTIME_INFO, 4711, -5,
)  # fmt: skip
"""Codes of all requests, including two that no node handles. Left out are those that act beyond their own names: of
users, of transactions and staged writes, and those that a node passes on to clients."""
_READ = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.QUERY_MESSAGE)
"""Codes whose requests may also read the topic of other clients."""


class OddRequest(NamedTuple):
    """A request that makes no sense, with the conditions under which it may stay unanswered."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    silent: bool = False
    """True if the node may rightly leave the request unanswered while there is no leader."""
    parked_s: float = 0.0
    """Time in seconds for which the node may park the request to wait for messages."""


def draw_odd(rng: random.Random, code: int | None = None) -> OddRequest:
    """Draws the next senseless request, of the given code if there is one."""
    code = rng.choice(CODES) if code is None else code
    known = code if code in almost_valid.FIELDS else Code.QUERY_CONSUMER_OFFSET
    _, fields, body = almost_valid.draw(rng, known)
    ext = {name: str(value) for name, value in fields.items()}
    if code in _READ and rng.random() < 0.25:
        ext["topic"] = TOPIC
    return OddRequest(int(code), ext, body, code == Code.QUERY_CONSUMER_OFFSET, _parked_s(ext))


def _parked_s(ext: dict[str, str]) -> float:
    """Returns the longest time in seconds for which a pull with these fields may be parked."""
    wanted = ext.get("suspendTimeoutMillis", "").strip()
    return min(int(wanted), SUSPEND_MS_MAX) / 1000 if wanted.isdecimal() and len(wanted) < 100 else 0.0
