"""Users of a local cluster: `raftmq up --auth` makes the first Super, and enforces rules.

.raftmq/users.key       encrypts the secrets of users; every node reads it
.raftmq/first-user      name and secret of the first Super; clients and commands that find the cluster by its
                        directory sign with it
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from cluster.config.loading import load
from cluster.config.local_layout import NodeRecord
from cluster.config.node_files import USERS_KEY, set_users_key
from raftmq.client.discovery import LOCAL_USER
from raftmq.local.access_files import make_access_files, make_first_user
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.credentials import addresses_of
from raftmq.local.http.https import local_tls
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from raftmq.client.tls import Tls


PATIENCE_S = 30.0
"""Seconds for which the first change of a cluster is tried while no leader takes it."""
_POLL_S = 0.1


class ClientOptions(TypedDict, total=False):
    """Arguments of `raftmq.connect` besides the servers."""

    tls: Tls | Literal[False]
    access_key: str
    secret_key: str


def has_users(data: Path) -> bool:
    """Returns True if the cluster in that directory has the first user that `raftmq up --auth` makes."""
    return (data / LOCAL_USER).is_file()


def client_options(data: Path) -> ClientOptions:
    """Returns the arguments with which a client of the local cluster in that directory connects. Raises ValueError for
    a user's file that cannot be used."""
    from raftmq.client.environment import user_of

    options = ClientOptions(tls=local_tls(data) or False)
    if has_users(data):
        options["access_key"], options["secret_key"] = user_of(data / LOCAL_USER)
    return options


def lack_key(nodes: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Returns the nodes whose files name no key of users' secrets: those of a cluster that an earlier release made."""
    return [node for node in nodes if not load(node.config_path).auth.key_file]


def provide_key(data: Path, nodes: Iterable[NodeRecord]) -> None:
    """Makes the key of users' secrets if it is missing, and names it in the files of nodes that name none. Raises
    LocalError."""
    for node in lack_key(nodes):
        set_users_key(node.config_path, data / USERS_KEY)
        make_access_files([load(node.config_path)])


def enforce(data: Path, nodes: Iterable[NodeRecord], timeout_s: float = PATIENCE_S) -> None:
    """Makes the first Super of a ready cluster, if the cluster has no users or the first user's file exists, and makes
    the cluster enforce the rules. During an election it tries again, and then requests only what is still missing.
    Raises LocalError."""
    api = AdminApi(addresses_of(nodes), "raftmq auth show")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _enforce(api, data)
        except LocalError as error:
            if not _may_pass(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _may_pass(error: LocalError) -> bool:
    """Returns True if nothing was changed and the same request may succeed in a moment, or if the outcome is
    unknown."""
    if isinstance(error, ApiRefusal) and error.is_passing:
        return True
    return error.exit_code in (ExitCode.UNKNOWN, ExitCode.UNREACHABLE)


def _enforce(api: AdminApi, data: Path) -> None:
    from raftmq.client.environment import user_of

    known = {user["name"] for page in api.pages("/v1/users") for user in page["users"]}  # confirmed by a majority
    view = api.local("/v1/auth")  # from the same node, which is up to date now
    if has_users(data) or not view["total"]:
        name, secret = user_of(make_first_user(data / LOCAL_USER))
        if name not in known:  # an existing user may have been given another secret
            try:
                api.post("/v1/users", {"name": name, "secret": secret, "type": "Super"})
            except ApiRefusal as refusal:
                if refusal.code != "exists":  # an earlier attempt with an unknown outcome has created it
                    raise
    if view["mode"] != "enforce":
        api.put("/v1/auth", {"mode": "enforce"})
