"""`raftmq tier`: shows, extends, checks and repairs the part of the log that the object store holds."""

from __future__ import annotations

from typing import Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.shared_options import (
    cluster_options,
    counted,
    plain,
    print_json,
    print_table,
    show,
    show_problems,
    tell_group,
)
from raftmq.local.http.admin_http import AdminApi, scrubbed
from raftmq.local.http.all_groups import Groups, all_groups, alone, each_node_of, in_each, in_one, leader_of, named
from raftmq.local.http.list_pages import SINCE, whole_list
from raftmq_wire.errors import ExitCode


@command_group()
def tier() -> None:
    """Show, extend, check and mend what the object store holds of the log."""


@tier.command()
@cluster_options
def status(data: str | None, admin: str | None, as_json: bool) -> None:
    """Show how far the log is uploaded and verified, and what waits.

    Exits with 1 if the leader cannot reach the store.
    """
    asked, silent = each_node_of(all_groups(admin, data, members=True), "/v1/tier")
    leaders = [
        leader_of([each for each in asked if each.group == group]) for group in {each.group: 0 for each in asked}
    ]
    if as_json:
        print_json({"schema": 1, "nodes": [each.view for each in asked]})
    else:
        for leader in leaders:
            tell_group(leader.group, leaders)
            _show(leader.view)
        show_problems(silent)
    if any(leader.view["failing"] for leader in leaders):
        raise SystemExit(1)


def _show(view: dict[str, Any]) -> None:
    click.echo(f"tier       {view['url'] or 'none is configured (tier.url)'}")
    click.echo(f"log        {view['log_begins']} to {view['sealed_end']} in sealed segments")
    click.echo(f"verified   up to {view['verified_to']}; {view['stored_bytes']} bytes stored")
    if view["url"]:
        click.echo(f"pending    {view['pending_bytes']} bytes, the oldest for {view['pending_age_ms'] / 1000:.0f} s")
        click.echo(f"window     the oldest message that is not in the tier is {view['window_ms'] / 1000:.0f} s old")
    if view["state_copy"] is not None:
        click.echo(f"state      copied as of index {view['state_copy']}")
    if view["failing"]:
        click.echo(plain(f"failing    for {view['failing_ms'] / 1000:.0f} s: {view['failing']}"))
    if view["last"]:
        rows = [
            [row["base"], row["end"], row["state"], row["term"], len(row["parts"]), row["stored_bytes"]]
            for row in view["last"]
        ]
        print_table(["base", "end", "state", "term", "objects", "bytes"], rows)


@tier.command(name="ls")
@cluster_options
def list_segments(data: str | None, admin: str | None, as_json: bool) -> None:
    """List the segments in the tier, with their objects."""
    answers = {}
    for group, addresses in all_groups(admin, data).items():
        answer = whole_list(AdminApi(addresses).page, "/v1/tier/segments", "segments", SINCE)
        answers[group] = named({"node": answer["node"], "segments": answer["segments"]}, group)
    if as_json:
        print_json({"schema": 1, **in_one(answers)})
        return
    for group, answer in answers.items():
        tell_group(group, answers)
        for row in answer["segments"]:
            click.echo(f"{row['base']} to {row['end']}: {row['state']}, {row['stored_bytes']} bytes")
            for name in row["parts"]:
                click.echo(f"  {name}")


@tier.command()
@cluster_options
def seal(data: str | None, admin: str | None, as_json: bool) -> None:
    """Close the segment that is being written, so that all of the log up to now goes to the tier at once.

    The upload goes on when the command ends: `raftmq tier status` shows how far it is.
    """
    groups = all_groups(admin, data)
    sealed = in_each(groups, lambda api: api.post("/v1/tier/seal", {}), "raftmq tier status")
    answers = {group: named(answer, group) for group, answer in sealed.items()}
    told = [
        f"{f'group {group}: ' * (len(groups) > 1)}closed: all of the log below position {answer['position']} goes to "
        "the tier now"
        for group, answer in answers.items()
    ]
    show(as_json, in_one(answers), *told, "it is there when `raftmq tier status` shows it as verified")
    show_problems(alone(groups, "sealed"))


@tier.command()
@click.option("--sizes-only", is_flag=True, help="Compare only sizes, and read nothing.")
@cluster_options
def verify(sizes_only: bool, data: str | None, admin: str | None, as_json: bool) -> int:
    """Read every object of the tier and compare it with the log's state.

    Exit code: 0 if nothing is wrong, 1 if objects are missing or damaged, 3 if it did not finish.
    """
    return _scrub(all_groups(admin, data), {"reads": not sizes_only}, as_json)


@tier.command()
@cluster_options
def repair(data: str | None, admin: str | None, as_json: bool) -> int:
    """Verify, and write again what is missing or damaged and the leader still has.

    Exit code: 0 if nothing is wrong any more, 1 if something could not be repaired, 3 if it did not finish.
    """
    return _scrub(all_groups(admin, data), {"repairs": True}, as_json)


@tier.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed; temporary files are not looked for.")
@cluster_options
def sweep(dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> int:
    """Remove objects that no segment names and none ever will, and temporary files older than a day.

    Exit codes as for verify; objects are not read.
    """
    return _scrub(all_groups(admin, data), {"reads": False, "sweeps": True, "dry_run": dry_run}, as_json)


def _scrub(groups: Groups, wishes: dict[str, bool], as_json: bool) -> int:
    """Has the leader of each group scrub its tier, waits for the end, and prints the results. Returns the worst exit
    code of all groups: first the one that says that something is wrong, then the one that says that a scrub did not
    finish."""
    views, codes = {}, {ExitCode.OK}
    for group, addresses in groups.items():
        view = scrubbed(AdminApi(addresses), wishes)
        if view is None:
            which = f"group {group}: " if len(groups) > 1 else ""
            click.echo(f"{which}another node leads now: the scrub did not finish. Start it again", err=True)
            codes.add(ExitCode.UNKNOWN)
            continue
        views[group] = named(view, group)
        wrong = ExitCode.FAILED if view["bad"] > view["repaired"] else ExitCode.OK
        codes.add(ExitCode.UNKNOWN if view["failure"] else wrong)
    if as_json and views:
        print_json({"schema": 1, **in_one(views)})
    elif views:
        for group, view in views.items():
            tell_group(group, groups)
            _show_scrub(view)
    return next(code for code in (ExitCode.FAILED, ExitCode.UNKNOWN, ExitCode.OK) if code in codes)


def _show_scrub(view: dict[str, Any]) -> None:
    if view["failure"]:
        click.echo(plain(f"failed     {view['failure']}"))
        return
    click.echo(
        f"objects    {view['objects']} for {counted(view['segments'], 'segment')}; {view['read_bytes']} bytes read"
    )
    click.echo(f"bad        {view['bad']}, of which {view['repaired']} were repaired")
    click.echo(f"leftovers  {view['orphans']} that no segment names; {view['swept']} removed, temporary files included")
    if view["unsettled"]:
        click.echo(f"unsettled  {view['unsettled']} that an upload may yet name")
    for finding in view["findings"]:
        click.echo(plain(f"  {finding}"))
