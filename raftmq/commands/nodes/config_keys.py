"""`raftmq config`: the configuration that is the same on every node, and where a node's file differs from it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from cluster.config.cluster_keys import CLUSTER_KEYS, cluster_values, in_type
from cluster.config.loading import load, written_keys
from cluster.config.local_layout import NodeName, key_of
from cluster.config.source import toml_value
from raftmq.commands.command_group import command_group
from raftmq.commands.name_completion import complete_cluster_keys
from raftmq.commands.nodes import broker_conf, config_files
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import author, cluster_options, json_option, print_json, print_table
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.http.all_groups import Groups, all_groups, ask_all_of
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

LOOK = "raftmq config show"
FILE = click.argument("file", type=LocalPath(path_type=Path, dir_okay=False))


@command_group()
def config() -> None:
    """Show, change and compare the configuration.

    What must be equal on all nodes is part of the log and is changed here. The rest stands in each node's raftmq.toml.
    """


config.add_command(config_files.explain)
config.add_command(config_files.init)
config.add_command(config_files.downgrade)
config.add_command(broker_conf.import_)


@config.command()
@click.argument("key", required=False, shell_complete=complete_cluster_keys)
@click.option("--changed", is_flag=True, help="Only keys that differ from the defaults.")
@cluster_options
def show(key: str | None, changed: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the cluster's keys, or KEY alone: value, version, and who set it when."""
    answer = AdminApi(admin_addresses(admin, data), LOOK).get("/v1/config")
    rows = [row for row in answer["settings"] if key in (None, row["key"])]
    if key is not None and not rows:
        in_type(key, "")  # raises an error that says why KEY is no key of the cluster
    if changed:
        rows = [row for row in rows if row["value"] != row["default"]]
    if as_json:
        print_json({"schema": 1, **answer, "settings": rows})
        return
    if answer["version"]:
        click.echo(f"version {answer['version']}; it counts on every node, whatever its file says")
    else:
        click.echo("the cluster has no configuration of its own yet: each node goes by its file")
    print_table(
        ["key", "value", "default", "version", "set", "by"],
        [
            [
                row["key"],
                toml_value(row["value"]),
                "" if row["value"] == row["default"] else toml_value(row["default"]),
                str(row["version"]),
                _time(row["set_ms"]),
                row["author"] or "-",
            ]
            for row in rows
        ],
        none="every key has its default",
    )


@config.command("set")
@click.argument(
    "pairs", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE]...", shell_complete=complete_cluster_keys
)
@click.option("--reason", default="", help="For the history.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask, even if the change takes something away.")
@cluster_options
def set_keys(
    pairs: tuple[str, ...],
    reason: str,
    dry_run: bool,
    yes: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Change keys of the cluster on all nodes at once, without a restart: all of them, or none."""
    if len(pairs) % 2:
        key, equals, value = pairs[-1].partition("=")
        fix = shlex.join(["raftmq", "config", "set", *pairs[:-1], key, value if equals else "VALUE"])
        raise LocalError(f"{pairs[-1]} has no value", "keys and values come in pairs", fix, ExitCode.USAGE)
    values = {key: in_type(key, text) for key, text in zip(pairs[::2], pairs[1::2], strict=True)}
    api = AdminApi(admin_addresses(admin, data), LOOK)
    body: dict[str, Any] = {"values": values, "author": author(), "reason": reason}
    plan = api.put("/v1/config", {**body, "dry_run": True})
    if dry_run:
        _show_changed(plan, as_json)
        return
    if plan["warnings"] and not yes:
        for warning in plan["warnings"]:
            click.echo(warning, err=True)
        click.confirm("change it?", abort=True, err=True)
    # The user confirmed a change of this version, so the change applies to no other version.
    _show_changed(api.put("/v1/config", {**body, "version": plan["version"], "force": True}), as_json)


def _show_changed(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, **answer})
        return
    for change in answer["changes"]:
        before = "nothing" if change["before"] is None else toml_value(change["before"])
        click.echo(f"{change['key']}: {before} -> {toml_value(change['after'])}")
    for warning in answer["warnings"]:
        click.echo(f"note: {warning}")
    if not answer["changes"]:
        click.echo(f"nothing changes: version {answer['version']} has these values")
    elif answer["dry_run"]:
        click.echo("nothing was changed")
    else:
        click.echo(f"version {answer['version']} is in force (entry {answer['index']})")


@config.command()
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many changes.")
@cluster_options
def history(limit: int, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show who changed what and when, the newest change first."""
    answer = AdminApi(admin_addresses(admin, data), LOOK).page(f"/v1/config/history?limit={limit}")
    if as_json:
        print_json({"schema": 1, **answer})
        return
    rows = []
    for version in answer["changes"]:
        shown = version["changes"][:4]
        for number, change in enumerate(shown):
            before = "" if change["before"] is None else toml_value(change["before"])
            head = ["", "", ""] if number else [str(version["version"]), _time(version["time_ms"]), version["author"]]
            rows.append([*head, change["key"], before, toml_value(change["after"]), version["reason"]])
        left = len(version["changes"]) - len(shown)
        if left > 0:
            rows.append(["", "", "", f"and {left} more (--json shows all)", "", "", ""])
    print_table(["version", "time", "by", "key", "before", "after", "reason"], rows, none="nothing was changed yet")


@config.command()
@FILE
@json_option
def check(file: Path, as_json: bool) -> None:
    """Check a raftmq.toml without starting a node."""
    known = load(file, dict(os.environ))
    written = written_keys(file, dict(os.environ))
    shared = sorted(key for key in written if key in CLUSTER_KEYS)
    if as_json:
        print_json({"schema": 1, "file": str(file), "node": known.node.id, "cluster_keys": shared})
        return
    click.echo(f"{file} can be used (node {known.node.id})")
    if shared:
        click.echo(f"of the cluster, and only a first value: {', '.join(shared)}")


@config.command()
@click.argument("file", type=LocalPath(path_type=Path, dir_okay=False), required=False)
@cluster_options
def diff(file: Path | None, data: str | None, admin: str | None, as_json: bool) -> None:
    """Compare FILE with the running cluster; without FILE, show which nodes' files say something else.

    Only keys of the cluster are compared: those that FILE names, with the values that count.
    """
    addresses = admin_addresses(admin, data)
    if file is None:
        _show_overruled(all_groups(admin, data, members=True), as_json)
        return
    own, written = cluster_values(load(file, dict(os.environ))), written_keys(file, dict(os.environ))
    answer = AdminApi(addresses, LOOK).get("/v1/config")
    rows = [
        {"key": row["key"], "file": own[row["key"]], "cluster": row["value"]}
        for row in answer["settings"]
        if row["key"] in written and own[row["key"]] != row["value"]
    ]
    if as_json:
        print_json({"schema": 1, "file": str(file), "version": answer["version"], "differs": rows})
        return
    table = [[row["key"], toml_value(row["file"]), toml_value(row["cluster"])] for row in rows]
    print_table(["key", "file", "cluster"], table, none=f"{file} says nothing that the cluster contradicts")


def _show_overruled(groups: Groups, as_json: bool) -> None:
    answers, silent = ask_all_of(groups, "/v1/config")
    nodes: dict[NodeName, list[str]] = {each.view["node"]: each.view["overruled"] for each in answers}
    if as_json:
        print_json({"schema": 1, "nodes": [{"node": node, "overruled": keys} for node, keys in nodes.items()]})
        return
    rows = [[str(node), ", ".join(keys)] for node, keys in sorted(nodes.items(), key=_by_key) if keys]
    print_table(["node", "keys that its file contradicts"], rows, none="no node's file contradicts the cluster")
    for address, why in silent.items():
        click.echo(f"{address} does not answer: {why.why}", err=True)


def _by_key(item: tuple[NodeName, list[str]]) -> tuple[int, int]:
    return key_of(item[0])


def _time(ms: int | None) -> str:
    return time_text(ms)
