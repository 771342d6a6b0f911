"""`raftmq config explain`, `init` and `downgrade`: explain keys, write configuration files of nodes, and remove keys
that this version does not know. None of them needs a cluster."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import click
import msgspec

from cluster.config.node_files import NODES_MAX
from raftmq.commands.name_completion import complete_keys
from raftmq.commands.shared_options import counted, json_option, print_json, print_table, show
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@json_option
def explain(key: str | None, as_json: bool) -> None:
    """Show the meaning, unit, default and range of KEY, and whether a change needs a restart. Without KEY, list all.

    Needs no cluster. A key is written section.name, as in raft.tick_ms.
    """
    from cluster.config.explain import explain as explained
    from cluster.config.explain import keys

    if key is None:
        found = [explained(each) for each in keys()]
        if as_json:
            print_json({"schema": 1, "keys": msgspec.to_builtins(found)})
            return
        rows = [[one.key, one.default, one.unit, "no" if one.reload else "yes"] for one in found]
        print_table(["key", "default", "unit", "restart"], rows)
        return
    one = explained(key)
    if as_json:
        print_json({"schema": 1, **msgspec.to_builtins(one)})
        return
    in_list = key.startswith(("peers.", "listeners."))
    lines = [
        ("meaning", one.meaning),
        ("unit", one.unit),
        ("default", one.default),
        ("range", one.range),
        ("usual", f"{one.usual}; outside of it {one.effect}, and a change needs a confirmation" if one.usual else ""),
        ("reload", "yes" if one.reload else "no"),
        ("change", one.change),
        ("variable", "" if in_list else f"RAFTMQ_{key.replace('.', '__').upper()}"),
    ]
    click.echo(one.key)
    for label, text in lines:
        if text:
            click.echo(f"  {label:<9} {text}")


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@click.option(
    "--to",
    "folder",
    type=LocalPath(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Folder for n1/raftmq.toml, n2/raftmq.toml and so on (default: this one).",
)
@click.option(
    "--data-dir",
    type=LocalPath(),
    default="data",
    show_default=True,
    metavar="DIR",
    help="Data directory of each node on its machine; a relative one counts from the file's folder.",
)
@json_option
def init(hosts: tuple[str, ...], folder: Path, data_dir: str, as_json: bool) -> None:
    """Write a raftmq.toml for each node of a new cluster: one HOST per node, as the other nodes reach it.

    Nodes of one host get ports of their own. Existing files are never replaced. Next, copy each file to its machine
    and create the data directories with raftmq init.
    """
    _check_hosts(hosts)
    paths = [folder / f"n{number}" / "raftmq.toml" for number in range(1, len(hosts) + 1)]
    for path in paths:
        if path.exists():
            raise LocalError(
                f"{path} exists", "a file is never replaced", f"raftmq config init {' '.join(hosts)} --to NEWDIR",
                ExitCode.REFUSED,
            )  # fmt: skip
    from cluster.config.loading import load

    for number, path in enumerate(paths, 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(number, hosts, data_dir), encoding="utf-8")
        load(path, {})
    shown = " ".join(f"--config {path}" for path in paths)
    answer = {"files": [str(path) for path in paths]}
    told = f"wrote {counted(len(paths), 'file')}; copy each to its machine, or try them here with: raftmq init {shown}"
    show(as_json, answer, *map(str, paths), told)


@click.command()
@click.argument("files", nargs=-1, required=True, type=LocalPath(path_type=Path, dir_okay=False), metavar="FILE...")
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped.")
@json_option
def downgrade(files: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Drop the keys of each raftmq.toml that this version does not know, because a newer one wrote them.

    A copy of each changed file stays beside it. Stop the newer version first, and start this one afterwards.
    """
    from raftmq.local.downgrade import downgrade as dropped_from

    for file in files:
        dropped_from(file, dry_run=True)  # a dry run first, so that either all files are written or none
    found = [dropped_from(file, dry_run=dry_run) for file in files]
    lines = []
    for one in found:
        kept = f"; the file as it was: {one.copy}" if one.copy else ""
        verb = "would drop" if dry_run else "dropped"
        lines.append(f"{one.file}: {verb} {', '.join(one.dropped)}{kept}" if one.dropped else f"{one.file}: all known")
    show(as_json, {"dry_run": dry_run, "files": [one._asdict() for one in found]}, *lines)


def _check_hosts(hosts: tuple[str, ...]) -> None:
    if len(hosts) > NODES_MAX:
        raise LocalError(
            f"a cluster of {counted(len(hosts), 'node')} is not possible",
            f"it can have 1 to {NODES_MAX} nodes; 3 survive the loss of one, 5 the loss of two",
            f"raftmq config init {' '.join(hosts[:5])}",
            ExitCode.USAGE,
        )
    for host in hosts:
        if not host or any(letter in host for letter in '/[]@"\\ \t\n') or (":" in host and not _is_address(host)):
            raise LocalError(
                f"{host!r} is not a host",
                "a host is a name or an address without a port, as the other nodes reach it",
                "raftmq config init 10.0.0.1 10.0.0.2 10.0.0.3",
                ExitCode.USAGE,
            )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ports(number: int, hosts: tuple[str, ...]) -> tuple[int, int, int, int]:
    """Returns the ports broker, namesrv, peer and admin of a node: RocketMQ's usual ones for the first node of a host,
    others for further nodes."""
    before = hosts[: number - 1].count(hosts[number - 1])
    return 10911 + 10 * before, 9876 + before, 10912 + 10 * before, 9644 + before


def _text(number: int, hosts: tuple[str, ...], data_dir: str) -> str:
    """Returns the text of one node's raftmq.toml. If the host is an IP address or localhost, the node binds it; for any
    other name, which may stand for any address of the machine, the node binds all addresses."""
    from cluster.config.source import toml_value

    host = hosts[number - 1]
    bind = toml_value(host if _is_address(host) else "localhost" if host == "localhost" else "0.0.0.0")
    broker, namesrv, peer, admin = _ports(number, hosts)
    lines = [
        f"# Node {number} of {len(hosts)}. What a key means: raftmq config explain KEY",
        "[node]",
        f"id = {number}",
        f"data_dir = {toml_value(data_dir)}",
        "",
        "[[listeners]]",
        'name = "broker"',
        f"bind = {bind}",
        f"port = {broker}",
        "",
        "# The port that clients use as the name server: it directs them to the broker ports.",
        "[[listeners]]",
        'name = "namesrv"',
        f"bind = {bind}",
        f"port = {namesrv}",
        "",
        "[peer]",
        f"bind = {bind}",
        f"port = {peer}",
        "",
        "# Deletes topics for whoever reaches it, unless auth.mode is enforce: open it to operators alone.",
        "[admin]",
        f"bind = {bind}",
        f"port = {admin}",
    ]
    for each, other in enumerate(hosts, 1):
        ports = _ports(each, hosts)
        address = toml_value(_joined(other, ports[0]))
        lines += [
            "",
            "[[peers]]",
            f"id = {each}",
            f"host = {toml_value(other)}",
            f"port = {ports[2]}",
            f"admin = {toml_value(_joined(other, ports[3]))}",
            f"listeners = {{broker = {address}, namesrv = {address}}}",
        ]
    return "\n".join(lines) + "\n"
