"""`raftmq context`: manages names of clusters, to be used as `--admin NAME` and `--servers NAME`."""

from __future__ import annotations

from pathlib import Path

import click

from raftmq.client.tls import Tls
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import json_option, print_json, print_table, show
from raftmq.local.http.admin_http import cluster_at, parse_addresses
from raftmq.local.http.contexts import NAME, ClusterContext, contexts_file, read_contexts, write_contexts
from raftmq.local.http.https import speak_tls
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError


@command_group()
def context() -> None:
    """Give clusters names; --admin NAME and --servers NAME then stand for their addresses."""


@context.command("add")
@click.argument("name")
@click.option("--admin", metavar="HOST:PORT,…", help="HTTP API of one or more nodes.")
@click.option("--servers", metavar="HOST:PORT;…", help="Name servers of one or more nodes.")
@click.option(
    "--tls-ca",
    type=LocalPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="CAs that the nodes' certificates come from: the context speaks TLS.",
)
@json_option
def add(name: str, admin: str | None, servers: str | None, tls_ca: Path | None, as_json: bool) -> None:
    """Add the context NAME, or change what is given. The cluster that answers now is remembered."""
    if not NAME.match(name):
        why = "a name has letters, digits, - and _, and begins with a letter or digit"
        raise LocalError(f"{name} cannot be the name of a context", why, "raftmq context add prod", ExitCode.USAGE)
    if admin is None and servers is None:
        raise click.UsageError("A context needs --admin, --servers or both.", click.get_current_context())
    contexts = read_contexts()
    before = contexts.get(name, ClusterContext(name, [], "", []))
    ca = before.tls_ca if tls_ca is None else str(tls_ca.absolute())
    if ca:
        speak_tls(ca)
    context = before._replace(
        tls_ca=ca,
        addresses=before.addresses if admin is None else parse_addresses(admin),
        servers=before.servers if servers is None else _parse_servers(servers),
    )
    context = context._replace(cluster_id=_cluster_at(context))
    write_contexts({**contexts, name: context})
    told = f"context {name}: {'; '.join(_places(context))}" + (
        "" if context.cluster_id else "; no node answers there now"
    )
    show(as_json, {**_row(context), "file": str(contexts_file())}, told)


def _parse_servers(servers: str) -> list[str]:
    from raftmq.client.discovery import parse_servers

    try:
        return list(parse_servers(servers))
    except ValueError as error:
        why = "clients connect to the name servers of the cluster"
        raise LocalError(str(error), why, "--servers 127.0.0.1:9876", ExitCode.USAGE) from None


def _cluster_at(context: ClusterContext) -> str:
    """Returns the id of the cluster that answers at the context's addresses; "" if none does. Raises LocalError if two
    clusters answer."""
    by_api = by_servers = ""
    if context.addresses:
        by_api = cluster_at(context.addresses)
    if context.servers:
        by_servers = cluster_of_clients(context.servers, context.tls_ca)
    if by_api and by_servers and by_api != by_servers:
        raise LocalError(
            f"--admin and --servers of the context {context.name} lead to two clusters",
            f"cluster {by_api} answers at {', '.join(context.addresses)}, {by_servers} at {';'.join(context.servers)}",
            f"raftmq context remove {context.name}, then add it with both",
            ExitCode.REFUSED,
        )
    return by_api or by_servers


def cluster_of_clients(servers: list[str], tls_ca: str = "") -> str:
    """Returns the id of the cluster that answers clients at these servers; "" if none does."""
    from raftmq.client import RaftMQError
    from raftmq.client import connect as open_client

    with open_client(servers, tls=Tls(ca=tls_ca) if tls_ca else None) as client:
        try:
            client.admin.members()
        except RaftMQError:
            return ""
        return client.cluster_ids[0] if client.cluster_ids else ""


def _places(context: ClusterContext) -> list[str]:
    admin, servers = ", ".join(context.addresses), ";".join(context.servers)
    return [f"{option} {value}" for option, value in (("--admin", admin), ("--servers", servers)) if value]


def _row(context: ClusterContext) -> dict[str, object]:
    return {
        "name": context.name,
        "admin": context.addresses,
        "servers": context.servers,
        "cluster_id": context.cluster_id,
        "tls_ca": context.tls_ca,
    }


@context.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the contexts."""
    contexts = sorted(read_contexts().values())
    if as_json:
        print_json({"schema": 1, "contexts": [each._asdict() for each in contexts]})
        return
    rows = [
        [each.name, ", ".join(each.addresses) or None, ";".join(each.servers) or None, each.cluster_id or None]
        for each in contexts
    ]
    titles = ["name", "admin", "servers", "cluster"]
    none = "no contexts yet: raftmq context add NAME --admin HOST:9644 --servers HOST:9876"
    print_table(titles, rows, none=none, left=titles)


@context.command("remove")
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove the context NAME; the cluster is not touched."""
    contexts = read_contexts()
    if name not in contexts:
        raise LocalError(f"there is no context {name}", "nothing was removed", "raftmq context list", ExitCode.USAGE)
    write_contexts({key: each for key, each in contexts.items() if key != name})
    show(as_json, {"name": name}, f"context {name} is removed")
