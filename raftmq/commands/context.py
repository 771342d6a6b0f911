"""`raftmq context`: names for clusters, to be used as `--admin NAME`."""

from __future__ import annotations

import click

from cluster.errors import ExitCode, LocalError
from raftmq.commands.common import json_option, print_json, print_table, show
from raftmq.local.admin_http import AdminApi, parse_addresses
from raftmq.local.contexts import NAME, ClusterContext, contexts_file, find_context, read_contexts, write_contexts


@click.group()
def context() -> None:
    """Give clusters names; --admin NAME then stands for their addresses."""


@context.command("add")
@click.argument("name")
@click.option("--admin", required=True, metavar="HOST:PORT,…", help="HTTP API of one or more nodes.")
@json_option
def add(name: str, admin: str, as_json: bool) -> None:
    """Add the context NAME, or change it. The cluster that answers now is remembered."""
    if not NAME.match(name):
        why = "a name has letters, digits, - and _, and begins with a letter or digit"
        raise LocalError(f"{name} cannot be the name of a context", why, "raftmq context add prod", ExitCode.USAGE)
    addresses = parse_addresses(admin)
    try:
        cluster_id = str(AdminApi(addresses).local("/v1/status")["cluster_id"])
    except LocalError as error:
        if error.exit_code is not ExitCode.UNREACHABLE:
            raise
        cluster_id = ""
    write_contexts({**read_contexts(), name: ClusterContext(name, addresses, cluster_id)})
    told = f"context {name}: {', '.join(addresses)}" + ("" if cluster_id else "; no node answers there now")
    show(as_json, {"name": name, "admin": addresses, "cluster_id": cluster_id, "file": str(contexts_file())}, told)


@context.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the contexts."""
    contexts = sorted(read_contexts().values())
    if as_json:
        print_json({"schema": 1, "contexts": [each._asdict() for each in contexts]})
        return
    rows = [[each.name, ", ".join(each.addresses), each.cluster_id or None] for each in contexts]
    print_table(["name", "admin", "cluster"], rows, none="no contexts yet: raftmq context add NAME --admin HOST:PORT")


@context.command("remove")
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove the context NAME; the cluster is not touched."""
    find_context(name)
    write_contexts({key: each for key, each in read_contexts().items() if key != name})
    show(as_json, {"name": name}, f"context {name} is removed")
