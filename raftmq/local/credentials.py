"""The proofs that requests to an HTTP API carry: a token, or passes of the operator (`cluster.admin.passes`).

The operator of a local cluster is found in its data directory. For addresses that a person named, a token or the file
of the cluster's secret is named too: RAFTMQ_TOKEN, the login of a context (`raftmq login`), RAFTMQ_SECRET_FILE.

An address is text, "host:port". One for which there is a proof is an `Address`, which is such a text too. A proof
belongs to the address for which a person meant it: an address that a node only tells has none.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cluster.admin.passes import operator_pass
from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.source import ConfigError
from cluster.peer.secret import path_of
from cluster.peer.secret_files import read_keys
from raftlog.errors import IdentityError
from raftlog.storage.files import identity, layout
from raftmq.local.answers import read_answer
from raftmq.local.https import chosen_tls, connection_to, local_tls
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.client.tls import Tls

Headers = dict[str, str]
TOKEN_VARIABLE = "RAFTMQ_TOKEN"
SECRET_VARIABLE = "RAFTMQ_SECRET_FILE"
"""Names a file with the cluster's secret."""
_TIMEOUT_S = 5.0
_SESSION = "/v1/session"


class Credentials(Protocol):
    """Proves the author of requests."""

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """Yields the headers of one request: the best proof first, then others if the node refuses that as a pass."""


class Address(str):
    """ "host:port" of an HTTP API, and what proves the author of a request there."""

    credentials: Credentials

    def __new__(cls, address: str, credentials: Credentials) -> Address:
        """An address with a proof."""
        made = super().__new__(cls, address)
        made.credentials = credentials
        return made


def proofs_for(address: str, method: str, path: str, body: bytes) -> Iterator[Headers]:
    """Yields the headers to try, one after the other while a node refuses a pass; the last ones prove nothing."""
    if isinstance(address, Address):
        yield from address.credentials.proofs(method, path, body)
    yield {}


class Bearer:
    """A user who has a token. It goes to the addresses that the user named, and to no other."""

    def __init__(self, token: str) -> None:
        self._token = token

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """The token."""
        yield {"Authorization": f"Bearer {self._token}"}


class RemoteSecret:
    """The operator of a cluster elsewhere, who has a copy of its secret. The node at the address says which one it is:
    a pass that a stranger gets there is good for one request to the node that it named."""

    def __init__(self, address: str, secret: Path) -> None:
        self.address = address
        self.secret = secret
        self._told: tuple[int, str] | None = None

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """A pass for each key in the file. Raises LocalError if the file cannot be used."""
        keys = read_keys(self.secret)
        if not keys:
            why = f"{SECRET_VARIABLE} or --data-dir names a copy of the cluster's secret"
            raise LocalError(f"there is no file {self.secret}", why, "ls DATA/SECRET", ExitCode.USAGE)
        if self._told is None:
            self._told = node_at(self.address)
        if self._told is not None:
            for key in keys:
                yield made_pass(key, self._told[1], self._told[0], method, path, body)


def node_at(address: str) -> tuple[int, str] | None:
    """(node, cluster's uuid) as the node at an address tells everybody; None if it does not."""
    try:
        connection = connection_to(address, chosen_tls(), _TIMEOUT_S)
    except OSError:
        return None
    try:
        connection.request("GET", _SESSION)
        answer = json.loads(read_answer(connection.getresponse()))
        return int(answer["node"]), str(answer["cluster_id"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()


def given(addresses: Iterable[str], token: str = "") -> list[str]:
    """Addresses that a person named, with the proof that the person has. `token`: of a context."""
    token, secret = os.environ.get(TOKEN_VARIABLE, "") or token, os.environ.get(SECRET_VARIABLE, "")
    if token:
        return [Address(address, Bearer(token)) for address in addresses]
    if secret:
        return [Address(address, RemoteSecret(address, Path(secret))) for address in addresses]
    return list(addresses)


def like(known: str, address: str) -> str:
    """An address that the node at `known` told, with a proof if that may go there."""
    credentials = known.credentials if isinstance(known, Address) else None
    if isinstance(credentials, RemoteSecret):
        return Address(address, RemoteSecret(address, credentials.secret))
    return address


def tls_of(address: str) -> Tls | None:
    """The TLS to speak at an address; None for plain text. Raises LocalError."""
    credentials = address.credentials if isinstance(address, Address) else None
    return credentials.tls if isinstance(credentials, LocalSecret) else chosen_tls()


class LocalSecret:
    """The operator of a local cluster, who can read the secret and the identity of one of its nodes."""

    def __init__(self, node: NodeRecord) -> None:
        self._node = node

    @property
    def tls(self) -> Tls | None:
        """The TLS of the cluster; None for plain text."""
        return local_tls(self._node.home.parent)

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """A pass for each key in the node's file: while the secret is changed, the node may know only one of them."""
        try:
            secret, data = _files(self._node.config_path, self._node.config_path.stat().st_mtime_ns)
            uuid = str(identity.decode((data / layout.IDENTITY).read_bytes(), data / layout.IDENTITY).cluster_uuid)
            keys = read_keys(secret)
        except (OSError, ConfigError, IdentityError, LocalError):
            return  # a stranger then; the answer says which proof is missing
        for key in keys:
            yield made_pass(key, uuid, self._node.id, method, path, body)


def made_pass(key: bytes, uuid: str, node: int, method: str, path: str, body: bytes) -> Headers:
    """The header of one request of an operator, with this machine's clock."""
    return operator_pass(key, uuid, node, method, path, body, wall_ms=time.time_ns() // 1_000_000, nonce=os.urandom(16))


@lru_cache(maxsize=64)
def _files(config_path: Path, _changed_ns: int) -> tuple[Path, Path]:
    """The files of the secret and of the data that a node's configuration names."""
    config = load(config_path, os.environ)
    return path_of(config), Path(config.node.data_dir)


def address_of(node: NodeRecord) -> Address:
    """The HTTP API of a node of a local cluster."""
    return Address(f"127.0.0.1:{node.admin_port}", LocalSecret(node))


def addresses_of(nodes: Iterable[NodeRecord]) -> list[str]:
    """The HTTP APIs of nodes of a local cluster."""
    return [address_of(node) for node in nodes]
