"""`raftmq cert`: makes certificates for nodes and clients, from a CA of the user's own (docs/security.md)."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import F, json_option, print_json
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

_OUT = click.option(
    "--out",
    type=LocalPath(path_type=Path, file_okay=False),
    metavar="DIR",
    default=Path(),
    help="Folder for the files (default: the current one).",
)
_CA = click.option(
    "--ca",
    "ca_dir",
    type=LocalPath(path_type=Path, file_okay=False),
    metavar="DIR",
    default=Path(),
    help="Folder with ca.crt and ca.key (default: the current one).",
)
_REPLACE = click.option("--replace", is_flag=True, help="Write over files that are there.")


def _days(default: int) -> Callable[[F], F]:
    return click.option(
        "--days", type=click.IntRange(1, 36_500), default=default, show_default=True, help="Days that it is valid."
    )


@command_group()
def cert() -> None:
    """Make certificates for TLS: a CA, and what it issues to nodes and clients."""


@cert.command()
@_OUT
@_days(3650)
@_REPLACE
@json_option
def ca(out: Path, days: int, replace: bool, as_json: bool) -> None:
    """Make a CA: ca.crt for everybody, and ca.key for those who issue certificates.

    Keep ca.key away from the nodes: with it anyone can make a certificate that nodes accept.
    """
    from raftmq.local.tls.certificates import CA, new_ca, write_pair

    pair = new_ca(days=days)
    write_pair(pair, out, CA, replace=replace)
    _tell(out, CA, as_json)


@cert.command()
@click.option(
    "--config",
    "config_path",
    type=LocalPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    required=True,
    help="raftmq.toml of the node, which tells its addresses and its data directory.",
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A further name or address of the node.")
@_CA
@_OUT
@_days(365)
@_REPLACE
@json_option
def node(
    config_path: Path, hosts: tuple[str, ...], ca_dir: Path, out: Path, days: int, replace: bool, as_json: bool
) -> None:
    """Make a certificate for a node: node-N.crt and node-N.key.

    It names the node and its cluster, and each host in the node's addresses. Make the node's directory first: raftmq
    init.
    """
    from cluster.config.loading import load
    from raftmq.local.tls.certificates import read_ca
    from raftmq.local.tls.node_certificates import issue_node

    config = load(config_path, os.environ)
    stem = issue_node(read_ca(ca_dir), config, out, hosts=hosts, days=days, replace=replace)
    _tell(out, stem, as_json)


@cert.command()
@click.argument("name")
@_CA
@_OUT
@_days(365)
@_REPLACE
@json_option
def client(name: str, ca_dir: Path, out: Path, days: int, replace: bool, as_json: bool) -> None:
    """Make a certificate for a client: NAME.crt and NAME.key.

    Nodes ask for one if tls.client_certificates says so. It cannot be used as a node's.
    """
    from raftmq.local.tls.certificates import new_client, read_ca, write_pair

    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
        raise LocalError(
            f"{name} is no name for a certificate",
            "it becomes the name of two files",
            "use letters, digits, - and _",
            ExitCode.USAGE,
        )
    write_pair(new_client(read_ca(ca_dir), name, days), out, name, replace=replace)
    _tell(out, name, as_json)


@cert.command()
@click.argument("file", type=LocalPath(path_type=Path, dir_okay=False))
@click.option(
    "--key",
    type=LocalPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also check that this is the key of the certificate.",
)
@json_option
def show(file: Path, key: Path | None, as_json: bool) -> None:
    """Show a certificate: whose it is, who issued it, and when it ends. Exits with 1 if it does not count now."""
    from raftmq.local.tls.certificates import describe, is_key_of, read_certificate

    certificate = read_certificate(file)
    told = describe(certificate)
    if key is not None and not is_key_of(key, certificate):
        raise LocalError(
            f"{key} is not the key of {file}",
            "a certificate and its key are made together",
            "raftmq cert node or raftmq cert client makes both again",
            ExitCode.FAILED,
        )
    now = datetime.datetime.now(datetime.UTC)
    counts = certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
    if as_json:
        print_json({"schema": 1, "file": str(file), "valid": counts, **told})
    else:
        for label, value in told.items():
            click.echo(f"{label.replace('_', ' '):<10}  {', '.join(value) if isinstance(value, list) else value}")
    if not counts:
        raise LocalError(
            f"{file} does not count now",
            f"it is valid from {told['begins']} to {told['ends']}",
            "raftmq cert node or raftmq cert client, with --replace",
            ExitCode.FAILED,
        )


def _tell(out: Path, stem: str, as_json: bool) -> None:
    from raftmq.local.tls.certificates import certificate_path, describe, key_path, read_certificate

    path = certificate_path(out, stem)
    told = describe(read_certificate(path))
    if as_json:
        print_json({"schema": 1, "certificate": str(path), "key": str(key_path(out, stem)), **told})
        return
    click.echo(f"{path} and {key_path(out, stem)} (mode 0600): {told['subject']}, until {told['ends']}")
