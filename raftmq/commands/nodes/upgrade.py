"""`raftmq upgrade`: upgrades a cluster node by node, and finalizes the upgrade, after which it cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cluster.config.local_layout import key_of, name_of, node_object
from raftlog.types import FIRST_GROUP
from raftmq.commands.command_group import command_group
from raftmq.commands.nodes.rolling_restart import WAIT, local_groups
from raftmq.commands.shared_options import (
    cluster_options,
    console,
    data_dir,
    data_option,
    json_option,
    show,
    show_problems,
)
from raftmq.local.cluster import LocalCluster
from raftmq.local.finalize import finalized, in_order, look_at
from raftmq.local.http.admin_http import AdminApi, GivenAddresses, admin_addresses
from raftmq.local.http.all_groups import all_groups, alone, in_one
from raftmq.local.http.credentials import like
from raftmq.local.rolling_restart import Restarted, RollingRestart, restart_registry
from raftmq.local.upgrade_plan import NodePlan, UpgradePlan, plan_of, require_all
from raftmq_wire.errors import ExitCode, LocalError

NAMED_MAX = 100
"""The most groups that the API names in one answer."""


@command_group()
def upgrade() -> None:
    """Upgrade the nodes to this version, one by one.

    Until `raftmq upgrade finalize`, nodes write as the older version does, and the way back is open: run
    the older version's `raftmq upgrade run`.
    """


@upgrade.command()
@cluster_options
def plan(data: str | None, admin: str | None, as_json: bool) -> None:
    """Show which nodes run another version than this command, and what is safe now."""
    asked = admin_addresses(admin, data)
    if isinstance(asked, GivenAddresses):
        plans = {FIRST_GROUP: _plan(_elsewhere(asked), asked)}
    else:
        plans = {group: _plan(there) for group, (there, _) in local_groups(LocalCluster(data_dir(data))).items()}
    lines = [line for group, found in plans.items() for line in _lines(found, group)]
    show(as_json, _as_json(plans), *lines)


@upgrade.command()
@WAIT
@data_option
@json_option
def run(wait_s: float, data: str | None, as_json: bool) -> None:
    """Restart the nodes of a local cluster with this version, one by one, the leader last.

    Nodes that already run it are left alone, so a run that was interrupted goes on. Elsewhere, install the version on
    every host, then: raftmq rolling-restart --admin HOST:9644 --exec CMD
    """
    groups = local_groups(LocalCluster(data_dir(data)))
    plans = {group: _plan(addresses) for group, (addresses, _) in groups.items()}
    for group, found in plans.items():
        require_all(found, group)
    done: list[Restarted] = []
    with console(stderr=True).status("asking the cluster") as spinner:
        for group, (addresses, restart) in groups.items():
            left = [each.node for each in plans[group].nodes if each.step != "done"]
            done += RollingRestart(addresses, restart, wait_s=wait_s, tell=spinner.update, group=group).run(left)
        done += restart_registry(LocalCluster(data_dir(data)), spinner.update, older=True)
    version = plans[FIRST_GROUP].version
    after = {group: _plan(addresses) for group, (addresses, _) in groups.items()}
    lines = [f"{node_object(*key_of(each.node))} runs {version} after {each.seconds:.1f} s" for each in done]
    lines += [] if done else [f"every node runs {version} already"]
    lines += [line for group, found in after.items() for line in _ending(found, group)]
    show(as_json, {"restarted": [each._asdict() for each in done], **_as_json(after)}, *lines)


@upgrade.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def finalize(yes: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Raise the cluster to the newest level that every voter and learner knows. There is no way back."""
    groups = all_groups(admin, data)
    apis = {group: AdminApi(addresses, "raftmq upgrade plan") for group, addresses in groups.items()}
    would = look_at(apis)
    if not would.left:
        show(as_json, in_one(would.groups), *_already(would.groups))
        return
    show_problems(alone(groups, "raised", f", and group {FIRST_GROUP} last"))
    question = (
        f"raise the cluster from level {would.before} to {would.level}? An older version then refuses its data "
        "directories, backups, snapshots and tier"
    )
    if not yes:
        if not sys.stdin.isatty():
            why = "there is no way back, and nobody can be asked here; nothing was written"
            raise LocalError("the cluster is not finalized", why, "raftmq upgrade finalize --yes", ExitCode.USAGE)
        click.confirm(question, abort=True, err=True)
    done = finalized(apis, would)
    show(as_json, in_one(done), *(line for group in in_order(done) for line in _raised(done, group)))


def _already(groups: Mapping[int, Mapping[str, Any]]) -> list[str]:
    first = groups[FIRST_GROUP]
    which = "the cluster has" if len(groups) == 1 else "every group has"
    return [f"{which} level {first['before']} already: nothing was written", *_broadcasts(first)]


def _raised(groups: Mapping[int, Mapping[str, Any]], group: int) -> list[str]:
    answer = groups[group]
    which = "the cluster" if len(groups) == 1 else f"group {group}"
    told = f"{which} has level {answer['level']} from entry {answer['index']} on"
    if answer["index"] is None:
        told = f"{which} has level {answer['level']} already"
    return [told, *(_broadcasts(answer) if group == FIRST_GROUP else [])]  # the same in all groups


def _broadcasts(answer: Mapping[str, Any]) -> list[str]:
    """Returns the line about groups that are configured to forbid broadcasting consumers but do not refuse them yet."""
    names = answer.get("broadcast_groups") or []  # a node of an earlier release does not report them
    if not names:
        return []
    return [
        f"consumeBroadcastEnable=false of {', '.join(names)}{' ...' * (len(names) >= NAMED_MAX)} was set before "
        "level 13 and does not count: set it again (mqadmin updateSubGroup -d false) to refuse broadcasting consumers"
    ]


def _elsewhere(asked: GivenAddresses) -> Mapping[int, str]:
    members = AdminApi(asked, "raftmq node list").local("/v1/members")["members"]
    return {int(each["id"]): like(asked[0], str(each["admin"])) for each in members if each["admin"]}


def _plan(addresses: Mapping[int, str], asked: Sequence[str] = ()) -> UpgradePlan:
    from cluster.runtime.host.versions import versions
    from statemachine.levels import LEVEL

    return plan_of(addresses, versions()["raftmq"], LEVEL, asked)


def _as_json(plans: Mapping[int, UpgradePlan]) -> dict[str, Any]:
    """Returns the plan of the first group as JSON. If there are further groups, its key `groups` has their plans."""
    each = {
        group: {**found._asdict(), "nodes": [node._asdict() for node in found.nodes]} for group, found in plans.items()
    }
    first = each.pop(FIRST_GROUP)
    return {**first, **({"groups": [{"group": group, **told} for group, told in each.items()]} if each else {})}


def _lines(found: UpgradePlan, group: int) -> list[str]:
    which = "the cluster" if group == FIRST_GROUP else f"group {group}"
    top = f"this command: version {found.version}, levels up to {found.known}; {which} has level {found.level}"
    return [top, *(_line(each, group) for each in found.nodes), *_ending(found, group)]


def _line(each: NodePlan, group: int) -> str:
    who = f"node {name_of(group, each.node)} ({each.role}{', leads' if each.leads else ''})"
    runs = f"{each.version or 'does not answer'}, level {each.level if each.level is not None else 'unknown'}"
    says = {
        "done": "done",
        "next": "next: may be restarted now",
        "later": "after the nodes above",
        "down": "down",
    }[each.step]
    return f"{who}: {runs}: {f'waits: {each.why}' if each.why else says}"


def _ending(found: UpgradePlan, group: int) -> list[str]:
    of = "" if group == FIRST_GROUP else f" of group {group}"
    if found.finalizes:
        return [
            f"every voter and learner{of} knows level {max(each.level or 0 for each in found.nodes)}; the way back is "
            "open until: raftmq upgrade finalize"
        ]
    if found.reasons and found.known > found.level:
        return [f"{f'group {group} ' * bool(of)}cannot be finalized yet: {'; '.join(found.reasons)}"]
    return []
