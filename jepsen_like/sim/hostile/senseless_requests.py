"""Requests that are valid frames and make no sense: every code with fields that are missing, huge or contradictory.

They write, delete and commit only under names that no other client uses; topics of other clients they only read. The
frames themselves are valid, so a node must answer each of these requests, once, and nothing may change for any other
client.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from cluster.broker.reads.pull_values import SUSPEND_MS_MAX
from cluster.requests.table import VERBS
from jepsen_like.hostile import almost_valid
from jepsen_like.sim.clients.client_machines import TOPIC
from raftmq_wire.codes import RequestCode as Code

_BY_PLACE = "it changes what lies at a position of the log, or under a number, whoever stored it"
_OF_ALL = "users, rules and the mode are everybody's"
_OF_CLIENTS = "a node passes it on to a client, which need not answer"
LEFT_OUT: Mapping[int, str] = {
    Code.CONSUMER_SEND_MSG_BACK: _BY_PLACE,
    Code.END_TRANSACTION: _BY_PLACE,
    Code.RECALL_MESSAGE: _BY_PLACE,
    Code.OPEN_ATTEMPT: _BY_PLACE,
    Code.STAGE_MESSAGES: _BY_PLACE,
    Code.COMMIT_WRITE: _BY_PLACE,
    Code.ABORT_WRITE: _BY_PLACE,
    Code.PREPARE_WRITE: _BY_PLACE,
    Code.COMMIT_GROUPS: _BY_PLACE,
    Code.AUTH_CREATE_USER: _OF_ALL,
    Code.AUTH_UPDATE_USER: _OF_ALL,
    Code.AUTH_DELETE_USER: _OF_ALL,
    Code.AUTH_CREATE_ACL: _OF_ALL,
    Code.AUTH_UPDATE_ACL: _OF_ALL,
    Code.AUTH_DELETE_ACL: _OF_ALL,
    Code.SET_AUTH_MODE: _OF_ALL,
    Code.GET_CONSUMER_RUNNING_INFO: _OF_CLIENTS,
    Code.CONSUME_MESSAGE_DIRECTLY: _OF_CLIENTS,
    Code.SEND_REPLY_MESSAGE: _OF_CLIENTS,
    Code.SEND_REPLY_MESSAGE_V2: _OF_CLIENTS,
}
"""Code of a request that is never sent, because it would affect more than the sender's own names -> the reason."""
CODES = (*sorted(VERBS.keys() - LEFT_OUT.keys()), 4711, -5)
"""Codes of all other requests, and two that no node handles."""
_READ = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.QUERY_MESSAGE)
"""Codes whose requests may also read the topic of other clients."""


class OddRequest(NamedTuple):
    """A request that makes no sense."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    parked_s: float = 0.0
    """Time in seconds for which the node may park the request to wait for messages."""


def draw_odd(rng: random.Random, code: int | None = None) -> OddRequest:
    """Draws the next senseless request. `code`: the request's code; None: any code in CODES."""
    code = rng.choice(CODES) if code is None else code
    known = code if code in almost_valid.FIELDS else Code.QUERY_CONSUMER_OFFSET
    _, fields, body = almost_valid.draw(rng, known)
    ext = {name: str(value) for name, value in fields.items()}
    if code in _READ and rng.random() < 0.25:
        ext["topic"] = TOPIC
    return OddRequest(int(code), ext, body, _parked_s(ext))


def _parked_s(ext: dict[str, str]) -> float:
    """Returns the longest time in seconds for which a pull with these fields may be parked."""
    wanted = ext.get("suspendTimeoutMillis", "").strip()
    return min(int(wanted), SUSPEND_MS_MAX) / 1000 if wanted.isdecimal() and len(wanted) < 100 else 0.0
