"""`raftmq support bundle`: writes one file with what is needed to understand a problem."""

from __future__ import annotations

import contextlib
import platform
from datetime import UTC, datetime
from pathlib import Path

import click

from cluster.config.local_layout import REGISTRY_GROUP, NodeRecord, read_cluster
from cluster.runtime.host.private_files import as_the_user_has_it
from raftlog.types import FIRST_GROUP
from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import cluster_options, console, counted, data_dir, show
from raftmq.local.http.admin_http import GivenAddresses, node_addresses, raise_if_refused
from raftmq.local.http.credentials import addresses_of
from raftmq.local.process import Started
from raftmq.local.support_bundle import files_of_node, text_of_file, without_secrets, write_bundle
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

MISSING = (
    "not in the bundle: the nodes' logs and raftmq.toml files, which no node gives away over HTTP. Add them from each "
    "node's machine: its raftmq.toml without secrets, and its output (journalctl, docker logs, or the file that it is "
    "redirected to). The cluster's configuration, as it is in force, is in each node's config.json.\n"
)


@command_group()
def support() -> None:
    """Collect what is needed to understand a problem."""


@support.command("bundle")
@click.option(
    "--to", "to", type=LocalPath(path_type=Path, dir_okay=False), metavar="FILE", help="A new file, name.tar.gz."
)
@cluster_options
def bundle(to: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Write state, metrics, events, logs and configuration of all nodes into one file.

    It contains no message body and no secret: values that look like secrets are replaced. Logs and raftmq.toml files
    are those of a local cluster; those of nodes elsewhere stay where they are, which the bundle then says.
    """
    path = to or Path(f"raftmq-support-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    if path.exists():
        raise LocalError(f"{path} exists already", "a bundle is never overwritten", "--to FILE", ExitCode.USAGE)
    files = {"about.txt": _about()}
    addresses = node_addresses(admin, data)
    raise_if_refused(addresses)
    elsewhere = isinstance(addresses, GivenAddresses)
    if not elsewhere:
        addresses = [*addresses, *addresses_of(node for node in _nodes(data) if node.group != FIRST_GROUP)]
    with console(stderr=True).status("asking the nodes"):
        for number, address in enumerate(addresses, 1):
            folder = f"node-{number}-{address.replace(':', '_').strip('[]')}"
            files |= {f"{folder}/{name}": text for name, text in files_of_node(address)}
        local = {} if elsewhere else _local(data)
        files |= local or {"missing.txt": MISSING}
    try:
        with contextlib.nullcontext() if to is None else as_the_user_has_it():
            write_bundle(path, files)
    except OSError as error:
        raise LocalError(f"{path} cannot be written", str(error.strerror), "--to FILE") from None
    told = [f"{path}: {counted(len(files), 'file')}, no secret, no message body"]
    show(as_json, {"file": str(path), "files": sorted(files)}, *told, *([] if local else [MISSING.rstrip()]))


def _local(data: str | None) -> dict[str, str]:
    """Returns logs and configuration files of the local cluster as path -> text; {} if there is none."""
    return {f"{_folder(each)}/{name}": text for each in _processes(data) for name, text in _files(each).items()}


def _processes(data: str | None) -> list[Started]:
    """Returns the nodes of the local cluster, of all groups, and its registry; [] if there is none."""
    try:
        return read_cluster(data_dir(data)).processes
    except LocalError:
        return []


def _nodes(data: str | None) -> list[NodeRecord]:
    return [each for each in _processes(data) if isinstance(each, NodeRecord)]


def _folder(process: Started) -> str:
    """Returns the name of a local process's folder in the bundle: "node-2"; "g03-node-2" for node 2 of group 3;
    "registry-2" for a process of the registry."""
    group, number = process.key
    if group == REGISTRY_GROUP:
        return f"registry-{number}"
    return f"node-{number}" if group == FIRST_GROUP else f"g{group:02}-node-{number}"


def _files(process: Started) -> dict[str, str]:
    found = {}
    for name, path in ((process.config_path.name, process.config_path), ("log.txt", Path(process.log))):
        try:
            found[name] = text_of_file(path)
        except OSError as error:
            found[f"{name}.error.txt"] = without_secrets(f"{path}: {error.strerror}\n")
    return found


def _about() -> str:
    from cluster.runtime.host.versions import versions

    rows = {"system": platform.platform(), "made": f"{datetime.now(UTC):%F %T} UTC", **versions()}
    return "".join(f"{name}: {value}\n" for name, value in rows.items())
