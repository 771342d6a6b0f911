"""The proofs that requests to an HTTP API carry: a token, or an operator's passes (`cluster.admin.signed_identity`).

The operator of a local cluster is identified by its data directory. For addresses that a person named, the person also
names a token or the file of the cluster's secret: RAFTMQ_TOKEN, the login of a context (`raftmq login`),
RAFTMQ_SECRET_FILE.

An address is a text, "host:port". An address with a proof is an `Address`, which is such a text too. A proof is sent
only to addresses that the user meant it for; an address that a node reported gets none.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cluster.admin.signed_identity import operator_pass
from cluster.config.loading import load
from cluster.config.local_layout import NodeName, NodeRecord, name_of
from cluster.config.source import ConfigError
from cluster.peer.secret import path_of
from cluster.peer.secret_files import read_keys
from raftlog.errors import IdentityError
from raftlog.storage.files import identity, layout
from raftlog.types import FIRST_GROUP
from raftmq.local.http.answers import loaded, read_answer
from raftmq.local.http.https import chosen_tls, connection_to, local_tls
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.client.tls import Tls

Headers = dict[str, str]
TOKEN_VARIABLE = "RAFTMQ_TOKEN"
SECRET_VARIABLE = "RAFTMQ_SECRET_FILE"
"""The environment variable that names a file with the cluster's secret."""
_TIMEOUT_S = 5.0
_SESSION = "/v1/session"


class Credentials(Protocol):
    """An interface: makes the headers that prove the author of a request to an HTTP API."""

    author: str
    """The author, in words."""

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """Yields the headers of one request: first the best proof, then others to be tried if the node refuses that
        pass."""


class Address(str):
    """The "host:port" of an HTTP API, together with the proof of the author of requests to it."""

    credentials: Credentials

    def __new__(cls, address: str, credentials: Credentials) -> Address:
        """Makes an address with a proof."""
        made = super().__new__(cls, address)
        made.credentials = credentials
        return made


def author_of(address: str) -> str:
    """Returns, in words, the author of requests to that address."""
    return address.credentials.author if isinstance(address, Address) else "nobody"


def proofs_for(address: str, method: str, path: str, body: bytes) -> Iterator[Headers]:
    """Yields the headers to try, one after the other while the node refuses a pass; the last headers carry no proof."""
    if isinstance(address, Address):
        yield from address.credentials.proofs(method, path, body)
    yield {}


class Bearer:
    """The token of a user. It is sent only to the addresses that the user named."""

    author = "the user of the token"

    def __init__(self, token: str) -> None:
        self._token = token

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """Yields the header with the token."""
        yield {"Authorization": f"Bearer {self._token}"}


class RemoteSecret:
    """The operator of a remote cluster, with a copy of its secret. It first asks the node at the address for its name,
    and then makes a pass for that node. A stolen pass is good only for one request to that node."""

    author = "the cluster's operator, by its secret"

    def __init__(self, address: str, secret: Path) -> None:
        self.address = address
        self.secret = secret
        self._told: tuple[NodeName, str] | None = None

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """Yields a pass for each key in the file. Raises LocalError if the file cannot be used."""
        keys = read_keys(self.secret)
        if not keys:
            why = f"{SECRET_VARIABLE} or --data-dir names a copy of the cluster's secret"
            raise LocalError(f"there is no file {self.secret}", why, f"ls -l {self.secret.parent}", ExitCode.USAGE)
        if self._told is None:
            self._told = node_at(self.address)
        if self._told is not None:
            for key in keys:
                yield made_pass(key, self._told[1], self._told[0], method, path, body)


def node_at(address: str) -> tuple[NodeName, str] | None:
    """Asks the node at an address, without a proof, for its name and cluster; returns (name, cluster's uuid), or None
    if it does not answer."""
    try:
        connection = connection_to(address, chosen_tls(), _TIMEOUT_S)
    except OSError:
        return None
    try:
        connection.request("GET", _SESSION)
        answer = loaded(read_answer(connection.getresponse()))
        return name_of(int(answer.get("group", FIRST_GROUP)), int(answer["node"])), str(answer["cluster_id"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()


def given(addresses: Iterable[str], token: str = "") -> list[str]:
    """Returns the addresses that a person named, with the proof that the person has; unchanged if the person has none.
    `token`: the token of a context."""
    token, secret = os.environ.get(TOKEN_VARIABLE, "") or token, os.environ.get(SECRET_VARIABLE, "")
    if token:
        return [Address(address, Bearer(token)) for address in addresses]
    if secret:
        return [Address(address, RemoteSecret(address, Path(secret))) for address in addresses]
    return list(addresses)


def like(known: str, address: str) -> str:
    """Returns an address that the node at `known` reported, with the proof of `known` if that proof may be sent
    there."""
    credentials = known.credentials if isinstance(known, Address) else None
    if isinstance(credentials, RemoteSecret):
        return Address(address, RemoteSecret(address, credentials.secret))
    return address


def tls_of(address: str) -> Tls | None:
    """Returns the TLS to use for an address; None for plain text. Raises LocalError."""
    credentials = address.credentials if isinstance(address, Address) else None
    return credentials.tls if isinstance(credentials, LocalSecret) else chosen_tls()


class LocalSecret:
    """The operator of a local cluster, who can read the secret and the identity of one of its nodes."""

    author = "the local cluster's operator"

    def __init__(self, node: NodeRecord) -> None:
        self._node = node

    @property
    def tls(self) -> Tls | None:
        """The TLS of the local cluster; None for plain text."""
        return local_tls(self._node.data)

    def proofs(self, method: str, path: str, body: bytes) -> Iterator[Headers]:
        """Yields the headers with a pass, one for each key in the node's file: while the secret is being changed, the
        node may know only one of them."""
        try:
            secret, data = _files(self._node.config_path, self._node.config_path.stat().st_mtime_ns)
            uuid = str(identity.decode((data / layout.IDENTITY).read_bytes(), data / layout.IDENTITY).cluster_uuid)
            keys = read_keys(secret)
        except (OSError, ConfigError, IdentityError, LocalError):
            return  # go on without a proof; the answer says which one is missing
        for key in keys:
            yield made_pass(key, uuid, self._node.name, method, path, body)


def made_pass(key: bytes, uuid: str, node: NodeName, method: str, path: str, body: bytes) -> Headers:
    """Returns the header with an operator's pass for one request, timed by this machine's clock."""
    return operator_pass(key, uuid, node, method, path, body, wall_ms=time.time_ns() // 1_000_000, nonce=os.urandom(16))


@lru_cache(maxsize=64)
def _files(config_path: Path, _changed_ns: int) -> tuple[Path, Path]:
    """Returns the path of the secret and the data directory, as a node's configuration names them. `_changed_ns`: the
    time when the file was changed; a changed file is read again instead of being taken from the cache."""
    config = load(config_path, os.environ)
    return path_of(config), Path(config.node.data_dir)


def address_of(node: NodeRecord) -> Address:
    """Returns the address of a local node's HTTP API, with the operator's proof."""
    return Address(f"127.0.0.1:{node.admin_port}", LocalSecret(node))


def addresses_of(nodes: Iterable[NodeRecord]) -> list[str]:
    """Returns the addresses of the HTTP APIs of these local nodes, with the operator's proof."""
    return [address_of(node) for node in nodes]
