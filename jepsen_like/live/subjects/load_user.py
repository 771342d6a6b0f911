"""The user of the load in a secured run. It has only the rights that the load's clients need."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from raftmq.local.http.credentials import Address, Headers, LocalSecret, address_of
from raftmq.local.http.http_exchange import exchange
from raftmq.local.waiting import until
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from cluster.config.local_layout import NodeRecord
    from raftmq.client import Client

NAME = "chaos-load"
REGISTERS = "chaos-meta"
"""Prefix of the names of the topics that the load uses as registers."""
KNOWN_S, POLL_S = 20.0, 0.05


def rights(topic: str, group: str) -> dict[str, list[str]]:
    """Returns resource -> the actions that the load's requests need there, by the names in docs/access-table.md."""
    return {
        f"Topic:{topic}": ["Pub", "Sub"],
        f"Group:{group}": ["Sub"],
        "Group:TOOLS_CONSUMER": ["Sub"],  # reads that name no group count as reads of this group
        f"Topic:{REGISTERS}*": ["Create", "Delete", "Get"],
    }


class LoadUser:
    """The secret and the token of the user."""

    def __init__(self) -> None:
        self.secret: Final = secrets.token_urlsafe(24)
        self._token = ""

    def make(self, root: Client, leader: NodeRecord, nodes: list[NodeRecord], topic: str, group: str) -> None:
        """Makes the user and its rules as `root`, logs it in, and waits until each node knows it. Raises RaftMQError,
        LocalError and OSError."""
        root.admin.create_user(NAME, self.secret)
        for resource, actions in rights(topic, group).items():
            root.admin.set_rule(NAME, resource, actions)
        asked = {"user": NAME, "secret": self.secret, "answer": "token"}
        reply = exchange(address_of(leader), "POST", "/v1/session", json.dumps(asked).encode(), timeout_s=KNOWN_S)
        if reply.status != 200:
            raise LocalError(f"user {NAME} cannot log in", reply.body.decode(), f"less {leader.log}")
        self._token = json.loads(reply.body)["token"]
        if not until(lambda: all(map(self._is_known_at, nodes)), KNOWN_S, POLL_S):
            raise LocalError("a node does not know the load's user", f"after {KNOWN_S:.0f} s", f"less {leader.log}")

    def _is_known_at(self, node: NodeRecord) -> bool:
        reply = exchange(self.address(node), "GET", "/v1/session", timeout_s=KNOWN_S)
        return bool(reply.status == 200 and json.loads(reply.body)["user"] == NAME)

    def address(self, node: NodeRecord) -> Address:
        """Returns the address of a node's HTTP API, with the user's token."""
        return Address(address_of(node), _Token(node, self._token))


class _Token(LocalSecret):
    """A user's token, for a node of a local cluster."""

    author = f"user {NAME}"

    def __init__(self, node: NodeRecord, token: str) -> None:
        super().__init__(node)
        self._token = token

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """Yields the header with the token."""
        yield {"Authorization": f"Bearer {self._token}"}
