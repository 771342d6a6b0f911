"""`raftmq events`: lists the events of the nodes, and follows new ones."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from cluster.config.local_layout import NodeName, key_of, name_of
from cluster.runtime.events import KINDS, rfc3339
from raftmq.commands.point_in_time import PointInTime, told_time
from raftmq.commands.shared_options import cluster_options, plain, print_json, show, show_problems
from raftmq.local.http.all_groups import Asked, Groups, all_groups, ask_all_of, named
from raftmq.local.http.asked_nodes import ask_each
from raftmq_wire.errors import ExitCode, LocalError

FOLLOW_EVERY_S = 1.0


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Keep printing new events until Ctrl-C.")
@click.option(
    "--since",
    type=PointInTime(ages=True),
    metavar="TIME",
    help="Events from then on: a time such as 2026-11-21T03:04:05Z, or an age such as 2h.",
)
@click.option("--kind", type=click.Choice(list(KINDS)), help="Only events of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="At most so many: the newest, or the first since then.",
)
@cluster_options
def events(
    follow: bool, since: int | None, kind: str | None, limit: int, data: str | None, admin: str | None, as_json: bool
) -> None:
    """Show what happened: elections, stalls, findings, repairs, changes of members and settings.

    Events of all nodes are sorted by their clocks. With --follow and --json, each event is one line. Exit code: 4 if no
    node answers; with --follow they are asked again.
    """
    groups = all_groups(admin, data, members=True)
    answers, silent = _asked(groups, f"/v1/events?limit={limit}{_query(since, kind)}", follow=follow)
    found = sorted((named(event, group) for group, _, view in answers for event in view["events"]), key=_place)
    found = found[:limit] if since is not None else found[-limit:]  # each node cuts its own list in the same way
    if as_json and not follow:
        show(True, {"events": found, "silent": list(silent)})
        return
    _print(found, as_json=as_json)
    if not as_json:
        show_problems(f"{address} does not answer" for address in silent)
    if follow:
        _follow(groups, {each.view["node"]: each.view["last_id"] for each in answers}, kind, as_json=as_json)


def _asked(groups: Groups, path: str, *, follow: bool) -> tuple[list[Asked], dict[str, LocalError]]:
    """Asks all nodes. Raises LocalError if none answers, unless the command follows new events and asks again."""
    try:
        return ask_all_of(groups, path)
    except LocalError as error:
        if not follow or error.exit_code is not ExitCode.UNREACHABLE:
            raise
        return [], {address: error for addresses in groups.values() for address in addresses}


def _follow(groups: Groups, seen: dict[NodeName, int], kind: str | None, *, as_json: bool) -> None:
    """Asks each node for new events, again and again. A node that does not answer is asked later, and then returns all
    events since the last answer."""
    while True:
        time.sleep(FOLLOW_EVERY_S)
        fresh = []
        for group, address in [(group, address) for group, addresses in groups.items() for address in addresses]:
            for api, view in ask_each([address], "/v1/events?limit=1")[0]:
                node = name_of(group, view["node"])
                known = seen.setdefault(node, view["last_id"])
                if view["last_id"] == known and not kind:
                    continue
                page = api.local(f"/v1/events?limit=1000&since={known}{_query(None, kind)}")
                seen[node] = page["last_id"]
                fresh += [named(event, group) for event in page["events"]]
        _print(sorted(fresh, key=_place), as_json=as_json)


def _query(since: int | None, kind: str | None) -> str:
    then = "" if since is None else f"&since={rfc3339(since)}"
    return then + (f"&kind={kind}" if kind else "")


def _place(event: dict[str, Any]) -> tuple[str, tuple[int, int], int]:
    return event["at"], key_of(event["node"]), event["id"]


def _print(found: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    for event in found:
        line = f"{told_time(event['at'])}  node {event['node']}  {event['kind']:<13} {event['object']}: {event['says']}"
        if as_json:
            print_json(event)
        else:
            click.echo(plain(line))
