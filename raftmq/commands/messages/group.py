"""`raftmq group`: create, list, describe, reset, clone and delete consumer groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import click

from raftlog.types import FIRST_GROUP
from raftmq.commands.command_group import command_group
from raftmq.commands.name_completion import complete_groups, complete_topics, told_of
from raftmq.commands.point_in_time import AGES, moment_ms
from raftmq.commands.shared_options import (
    cluster_options,
    counted,
    plain,
    print_json,
    print_pages,
    print_table,
    show,
    show_problems,
)
from raftmq.commands.value_types import NameType, QueueType
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.http.all_groups import Groups, all_groups, alone, in_each, named_group, told_by_each
from raftmq.local.http.group_sums import one_change, one_group, one_list
from raftmq_wire.queue_numbers import group_of, queue_in_group, queue_text

NAME = click.argument("name", type=NameType("group"), shell_complete=complete_groups)


class ResetTo(click.ParamType[dict[str, object]]):
    """The target of a reset on the command line: earliest, latest, an offset, a time or an age -> the fields `to` and
    `value`."""

    name = "where"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        if value in ("earliest", "latest"):
            return {"to": value}
        if str(value).isdecimal() and len(value) < 19:
            return {"to": "offset", "value": int(value)}
        try:
            return {"to": "time", "value": moment_ms(str(value))}
        except ValueError:
            self.fail(f"{value} is not earliest, latest, an offset (0 or more) or a time: {AGES}", param, ctx)


@command_group()
def group() -> None:
    """Create, list, describe, reset, clone and delete consumer groups."""


@group.command("create")
@NAME
@click.option("--retries", type=click.IntRange(-1), help="Tries of a message before it becomes a dead letter.")
@click.option("--consume", type=click.Choice(["yes", "no"]), help="Whether its consumers get messages.")
@click.option("--update", "if_exists", flag_value="update", help="Change the group if it exists.")
@click.option("--keep", "if_exists", flag_value="keep", help="Leave the group as it is if it exists.")
@cluster_options
def create(
    name: str,
    retries: int | None,
    consume: str | None,
    if_exists: str | None,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Create the group NAME. Consumers do so by themselves when they connect first."""
    enable = None if consume is None else consume == "yes"
    body = {"name": name, "retry_max_times": retries, "consume_enable": enable, "if_exists": if_exists or "fail"}
    answer = AdminApi(admin_addresses(admin, data)).post("/v1/groups", body)
    off = "" if answer["consume_enable"] else "; its consumers get no messages"
    told = f"{answer['result']} group {name}: messages are tried again {answer['retry_max_times']} times{off}"
    show(as_json, answer, told)


@group.command("delete")
@NAME
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@cluster_options
def delete(name: str, yes: bool, dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Delete the group NAME with its offsets. A consumer that is connected makes it again."""
    groups, path = all_groups(admin, data), f"/v1/groups/{quote(name, safe='')}"
    api, plan = AdminApi(groups[FIRST_GROUP]), dict[str, Any]()
    if dry_run or not yes or len(groups) > 1:
        plan = one_group(told_of(groups, "/v1/groups", name, lambda each: each.delete(f"{path}?dry_run=true")))
    if dry_run or not yes:
        held = f"{plan['offsets']} offsets, lag {plan['lag']}, {plan['members']} connected consumers"
        if dry_run:
            show(as_json, plan, f"nothing was changed; {name} would go ({held})")
            return
        click.confirm(f"delete {name} ({held})?", abort=True, err=True)
    answer = api.delete(path)
    if len(groups) > 1:  # further groups follow the first one; their figures come from before the deletion
        answer |= {field: plan[field] for field in ("offsets", "lag", "members")}
    show(as_json, answer, f"deleted {name} with {answer['offsets']} offsets")


@group.command("clone")
@click.argument("source", type=NameType("group"), shell_complete=complete_groups)
@NAME
@click.option("--topic", type=NameType("topic"), help="The offsets of this topic alone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@cluster_options
def clone(
    source: str,
    name: str,
    topic: str | None,
    yes: bool,
    dry_run: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Give the group NAME the committed offsets of the group SOURCE. No consumer of NAME should be connected."""
    groups = all_groups(admin, data)
    body = {"source": source, "topic": topic, "dry_run": dry_run}
    question = None if yes else lambda count: f"replace {count} offsets of {name} by those of {source}?"
    answer = _moved(groups, name, "clone", body, "offsets", question)
    show_problems(alone(groups, "changed"))
    if as_json:
        print_json({"schema": 1, **answer})
        return
    click.echo(f"nothing was changed; {name} would have these offsets" if dry_run else f"{name} has these offsets now")
    rows = [[each["topic"], queue_text(each["queue_id"]), each["before"], each["offset"]] for each in answer["offsets"]]
    none = f"{source} has committed nothing"
    print_table(["topic", "queue", "before", "offset"], rows, none=none, left=("topic",))


def _moved(
    groups: Groups,
    name: str,
    act: str,
    body: dict[str, Any],
    field: str,
    question: Callable[[int], str] | None,
) -> dict[str, Any]:
    """Has `groups` change offsets of the consumer group `name`; returns the answer, whose rows are in `field`. With a
    `question`, first finds out by a dry run how many rows would change, asks the user, and stops unless the user
    agrees."""
    path = f"/v1/groups/{quote(name, safe='')}/{act}"

    def changed(body: dict[str, Any]) -> dict[str, Any]:
        look, dry_run = f"raftmq group describe {name}", bool(body["dry_run"])
        return one_change(in_each(groups, lambda api: api.post(path, body), look, dry_run=dry_run), field)

    if question is not None and not body["dry_run"]:
        count = len(changed({**body, "dry_run": True})[field])
        click.confirm(question(count), abort=True, err=True)
    return changed(body)


@group.command("list")
@cluster_options
def list_(data: str | None, admin: str | None, as_json: bool) -> None:
    """List all groups with their lag."""
    groups = all_groups(admin, data)
    answers: Iterable[dict[str, Any]] = AdminApi(groups[FIRST_GROUP]).pages("/v1/groups")
    silent: list[str] = []
    if as_json or len(groups) > 1:
        told, silent = told_by_each(groups, lambda api: api.whole("/v1/groups", "groups"))
        answers = [one_list(told, "groups", one_group)]
    if as_json:
        print_json({"schema": 1, **next(iter(answers))})
        show_problems(silent)
        return
    pages = (
        [[g["name"], ", ".join(g["topics"]), g["members"], g["lag"], _remark_on(g)] for g in page["groups"]]
        for page in answers
    )
    none = "no groups yet; one appears with its first consumer: raftmq consume TOPIC --group NAME"
    titles = ["group", "topics", "members", "lag", "remark"]
    print_pages(titles, pages, none=none, left=("group", "topics", "remark"))
    show_problems(silent)


@group.command("describe")
@NAME
@cluster_options
def describe(name: str, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the members of the group NAME and its offset and lag in each queue."""
    groups, path = all_groups(admin, data), f"/v1/groups/{quote(name, safe='')}"
    answer = one_group(told_of(groups, "/v1/groups", name, lambda api: api.whole(path, "offsets")))
    if as_json:
        print_json({"schema": 1, **answer})
        return
    members = ", ".join(_names(answer["members"])) or "none connected"
    remark = f" ({remark})" if (remark := _remark_on(answer)) else ""
    click.echo(plain(f"{name}: lag {answer['lag']}{remark}; members: {members}"))
    about = ["committed", "min offset", "max offset", "lag", "lag s", "last commit s ago", "owner", "remark"]
    print_table(
        ["topic", "queue", *about],
        [
            [
                o["topic"],
                queue_text(o["queue_id"]),
                o["committed_offset"],
                o["min_offset"],
                o["max_offset"],
                o["lag"],
                _seconds(o["lag_ms"]),
                _seconds(o["committed_age_ms"]),
                o["owner"],
                _remark(o),
            ]
            for o in answer["offsets"]
        ],
        left=("topic", "owner", "remark"),
    )


def _remark(offset: dict[str, Any]) -> str:
    """Returns what is wrong with a group's offset in one queue; "" if nothing is. An older node does not report it."""
    beyond = offset.get("beyond_end", 0)
    texts = [f"committed {beyond} beyond the end"] if beyond else []
    return ", ".join([*texts, *(["hidden"] if offset.get("hidden") else [])])


def _remark_on(group: dict[str, Any]) -> str:
    """Returns what is wrong with a group's offsets in all queues together; "" if nothing is."""
    beyond, hidden = group.get("beyond_end", 0), group.get("hidden", 0)
    texts = [f"offset beyond the end in {counted(beyond, 'queue')}"] if beyond else []
    return ", ".join([*texts, *([f"{hidden} hidden"] if hidden else [])])


def _names(members: list[dict[str, Any]]) -> list[str]:
    """Returns the members' client ids; a client with several connections is listed with their addresses."""
    times = Counter(member["client_id"] for member in members)
    return [
        f"{each['client_id']} at {each['address']}" if times[each["client_id"]] > 1 else each["client_id"]
        for each in members
    ]


def _seconds(ms: int | None) -> str | None:
    return None if ms is None else f"{ms / 1000:.0f}"


@group.command("reset")
@NAME
@click.option(
    "--topic",
    type=NameType("topic"),
    required=True,
    shell_complete=complete_topics,
    help="The topic whose offsets are moved.",
)
@click.option(
    "--to", "where", type=ResetTo(), required=True, help="earliest, latest, an offset, a time or an age (2h)."
)
@click.option("--queue", type=QueueType(), help="This queue alone (default: all of the topic).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change, in messages.")
@cluster_options
def reset(
    name: str,
    topic: str,
    where: dict[str, object],
    queue: int | None,
    yes: bool,
    dry_run: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Move the offsets of the group NAME in a topic, also while it is consuming."""
    groups = all_groups(admin, data)
    own = None if queue is None else queue_in_group(queue)
    body = {"topic": topic, "queue_id": own, "dry_run": dry_run, **where}
    asked = groups if queue is None else named_group(groups, group_of(queue))
    question = None if yes else lambda count: f"move the offsets of {name} in {topic} ({counted(count, 'queue')})?"
    answer = _moved(asked, name, "reset", body, "queues", question)
    show_problems(alone(groups, "changed"))
    if as_json:
        print_json({"schema": 1, **answer})
        return
    done = f"{name} goes on in {topic} from these offsets; running consumers are told with their next pull"
    click.echo(f"nothing was changed; {name} would go on in {topic} from these offsets" if dry_run else done)
    rows = [
        [queue_text(each["queue_id"]), each["before"], each["offset"], each["again"], each["skipped"]]
        for each in answer["queues"]
    ]
    print_table(["queue", "before", "offset", "again", "skipped"], rows, left=())
