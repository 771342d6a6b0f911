"""Contexts: names for clusters, kept in one file of the user. `--admin NAME` and `--servers NAME` stand for a context's
addresses.

A context remembers which cluster answered when it was added, so that a name never leads to another cluster unnoticed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

from cluster.config.local_layout import replace_file
from raftmq_wire.errors import ExitCode, LocalError

FILE_VARIABLE = "RAFTMQ_CONTEXTS"
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
"""The form of a context's name. It cannot be mistaken for an address, which has a colon."""


class ClusterContext(NamedTuple):
    """One named cluster."""

    name: str
    addresses: list[str]
    """Addresses of the HTTP API; [] if only the clients' servers were named."""
    cluster_id: str
    """The id of the cluster that answered when the context was added; "" if none did."""
    servers: list[str]
    """Addresses of the nodes' port for clients; [] if only the HTTP API was named."""
    tls_ca: str = ""
    """The file with the CA of the nodes' certificates; "" for plain text, or for the value of RAFTMQ_TLS_CA."""


def contexts_file() -> Path:
    """Returns the path of the contexts' file: RAFTMQ_CONTEXTS, else raftmq/contexts.json in the user's configuration
    directory."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "raftmq" / "contexts.json"


def read_contexts() -> dict[str, ClusterContext]:
    """Returns all contexts by name; {} if there is no file. Raises LocalError for a file that cannot be read or has
    another format."""
    path = contexts_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreachable(path, error) from None
    try:
        rows: dict[str, Any] = json.loads(text)["contexts"]
        found = [
            ClusterContext(
                name,
                list(row["admin"]),
                str(row["cluster_id"]),
                list(row.get("servers", ())),
                str(row.get("tls_ca", "")),
            )
            for name, row in rows.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _unusable(path, "it is not a list of contexts") from None
    return {each.name: each for each in found}


def write_contexts(contexts: dict[str, ClusterContext]) -> None:
    """Replaces the contexts' file atomically. Raises LocalError."""
    path = contexts_file()
    rows = {
        each.name: {
            "admin": each.addresses,
            "cluster_id": each.cluster_id,
            "servers": each.servers,
            "tls_ca": each.tls_ca,
        }
        for each in contexts.values()
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps({"schema": 1, "contexts": rows}, indent=2) + "\n").encode())
    except OSError as error:
        raise _unreachable(path, error) from None


def token_file(name: str) -> Path:
    """Returns the path of a context's token, which is next to the contexts' file."""
    return contexts_file().parent / "tokens" / name


def read_token(name: str) -> str:
    """Returns the token of a context; "" if no user is logged in there. Raises LocalError."""
    path = token_file(name)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LocalError(f"the token in {path} cannot be read", why, f"raftmq login --admin {name}") from None
    if mode & 0o077:
        why = f"its mode is {mode:04o}, so others may read it"
        fix = f"raftmq logout --admin {name}, then raftmq login --admin {name}"
        raise LocalError(f"the token in {path} is not used", why, fix, ExitCode.REFUSED)
    return token


def write_token(name: str, token: str) -> None:
    """Stores the token of a context in a file that only its user can read; "" deletes it. Raises LocalError."""
    path = token_file(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if token:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(token + "\n")
    except OSError as error:
        fix = f"{FILE_VARIABLE}=FILE raftmq login    (keeps it beside that file)"
        raise LocalError(f"the token cannot be kept in {path}", str(error.strerror), fix) from None


def find_context(name: str) -> ClusterContext:
    """Returns the context of that name, which must have addresses of the HTTP API. Raises LocalError."""
    return _find(name, "the address of an HTTP API", "--admin", "HOST:9644")


def find_servers_context(name: str) -> ClusterContext:
    """Returns the context of that name, which must have servers for clients. Raises LocalError."""
    return _find(name, "host:port", "--servers", "HOST:9876")


def _find(name: str, address: str, option: str, example: str) -> ClusterContext:
    contexts = read_contexts()
    add = f"raftmq context add {name} {option} {example}"
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise LocalError(
            f"{name} is not {address}, and no context",
            f"an address is host:port; the contexts are: {known}",
            add if NAME.match(name) else f"{option} {example.replace('HOST', '127.0.0.1')}",
            ExitCode.USAGE,
        )
    context = contexts[name]
    if not (context.addresses if option == "--admin" else context.servers):
        raise LocalError(f"the context {name} has no {option}", "it was added without", add, ExitCode.USAGE)
    return context


def check_cluster(context: ClusterContext, *cluster_ids: str) -> None:
    """Raises LocalError unless the cluster that answers is the remembered one, or one that was restored from it.
    `cluster_ids`: the id of the cluster that answers, and the ids of those from which it was restored; "" means
    unknown."""
    if context.cluster_id and all(cluster_ids) and context.cluster_id not in cluster_ids and cluster_ids:
        raise LocalError(
            f"another cluster answers at the addresses of the context {context.name}",
            f"it was added for cluster {context.cluster_id}, and {cluster_ids[0]} answers",
            f"raftmq context remove {context.name}, then add it again    (if that is intended)",
            ExitCode.REFUSED,
        )


def _unusable(path: Path, why: str) -> LocalError:
    return LocalError(f"the contexts in {path} cannot be used", why, f"correct or remove {path}", ExitCode.FAILED)


def _unreachable(path: Path, error: OSError) -> LocalError:
    fix = f"{FILE_VARIABLE}=FILE raftmq context list    (keeps them in another file)"
    return LocalError(f"the contexts in {path} cannot be used", str(error.strerror), fix, ExitCode.FAILED)
