"""`raftmq topic`: creates, lists, describes, changes and deletes topics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import click

from cluster.replication.acks.ack_levels import ATTRIBUTE, NAMES
from cluster.runtime.byte_sizes import size_of
from raftmq.commands.command_group import command_group
from raftmq.commands.name_completion import complete_topics, near_name, told_of
from raftmq.commands.shared_options import (
    NOW,
    cluster_options,
    counted,
    print_json,
    print_pages,
    print_table,
    show,
    show_problems,
)
from raftmq.commands.value_types import NameType
from raftmq.local.http.admin_http import AdminApi, ApiRefusal, admin_addresses
from raftmq.local.http.all_groups import Groups, all_groups, in_one, told_by_each
from raftmq.local.http.group_sums import one_list, one_topic, one_topic_with_queues
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.queue_numbers import FIRST_GROUP, GROUPS_MAX, number_of, queue_text

NAME = click.argument("name", type=NameType("topic"), shell_complete=complete_topics)
IN_GROUP = click.option(
    "--in-group",
    "groups",
    multiple=True,
    type=click.IntRange(FIRST_GROUP, GROUPS_MAX),
    metavar="N",
    help="A group of brokers in which the topic gets queues; several times for several (default: all).",
)
HOT_SHOWN = 5
"""The most topics, queues and keys that `raftmq topic hot` shows of a group."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class KeptFor(click.ParamType[int]):
    """A retention time on the command line: 90s, 15m, 12h, 7d or forever. Converts it to milliseconds; 0 means without
    end."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "forever":
            return 0
        match = re.fullmatch(r"([1-9]\d{0,5})([smhd])", str(value))
        if match is None:
            self.fail(f"{value} is not a retention time: write 90s, 15m, 12h, 7d or forever", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


@command_group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command("create")
@click.argument("name", type=NameType("topic"))
@click.option("--queues", type=click.IntRange(1, 1024), help="Number of queues (default: the cluster's setting).")
@click.option("--dedup", type=click.Choice(["off", "retry", "strict"]), help="What counts as a duplicate send.")
@click.option("--ack", type=click.Choice(list(NAMES)), help="When a send to the topic is acknowledged.")
@click.option("--retention", type=KeptFor(), metavar="12h", help="How long messages are kept: 15m, 12h, 7d, forever.")
@click.option("--update", "if_exists", flag_value="update", help="Change the topic if it exists.")
@click.option("--keep", "if_exists", flag_value="keep", help="Leave the topic as it is if it exists.")
@IN_GROUP
@NOW
@cluster_options
def create(
    name: str,
    queues: int | None,
    dedup: str | None,
    ack: str | None,
    retention: int | None,
    if_exists: str | None,
    groups: tuple[int, ...],
    now: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Create the topic NAME."""
    body: dict[str, object] = {"name": name, "if_exists": if_exists or "fail"}
    if now:
        body["now"] = True
    if queues is not None:
        body["queues"] = queues
    if groups:
        body["groups"] = sorted(groups)
    attributes = _attributes_of(dedup, ack, retention)
    places = all_groups(admin, data)
    api = AdminApi(places[FIRST_GROUP])
    if attributes:
        known = _known_attributes(api, name) if if_exists == "update" else {}
        body["attributes"] = known | attributes
    if if_exists == "update" and queues is not None and not now:
        _check_hides_nothing(places, body)
    answer = api.post("/v1/topics", body)
    show(as_json, answer, f"{answer['result']} topic {name} with {_queues(answer['topic'])}")


def _check_hides_nothing(groups: Groups, body: dict[str, object]) -> None:
    """Checks in every group that a change of a topic hides no unread message, if there are several groups: this is
    needed because the first group, which decides, knows only its own queues. Raises LocalError."""
    if len(groups) == 1:
        return
    _, silent = told_by_each(groups, lambda each: each.post("/v1/topics?dry_run=true", body))
    if silent:
        why = f"not every group says if something is unread: {'; '.join(silent)}"
        raise LocalError(f"topic {body['name']} keeps its queues", why, "raftmq status", ExitCode.UNREACHABLE)


def _attributes_of(dedup: str | None, ack: str | None, retention: int | None) -> dict[str, str]:
    """Returns the topic attributes that the options name."""
    attributes = {} if dedup is None else {"dedup": dedup}
    if ack is not None:
        attributes[ATTRIBUTE] = ack
    if retention is not None:
        attributes["retention.ms"] = str(retention)
    return attributes


def _known_attributes(api: AdminApi, name: str) -> dict[str, str]:
    """Returns the topic's present attributes. A change over HTTP names all attributes, so those that the user does not
    name are sent as they are."""
    try:
        found: dict[str, str] = _topic(api, name)["attributes"]
    except ApiRefusal as error:
        if error.code == "not_found":  # the topic does not exist yet, and is created
            return {}
        raise
    return found


@topic.command("list")
@click.option("--all", "with_system", is_flag=True, help="Also show the system's own topics (%RETRY%…).")
@cluster_options
def list_(with_system: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """List the topics."""
    groups = all_groups(admin, data)
    answers: Iterable[dict[str, Any]] = AdminApi(groups[FIRST_GROUP]).pages("/v1/topics")
    silent: list[str] = []
    if as_json or len(groups) > 1:
        told, silent = told_by_each(groups, lambda api: api.whole("/v1/topics", "topics"))
        answers = [one_list(told, "topics", one_topic)]
    if as_json:
        print_json({"schema": 1, **next(iter(answers))})
        show_problems(silent)
        return
    pages = (
        [
            [t["name"], t["write_queues"], t["messages"], _bytes(t), _attributes(t["attributes"])]
            for t in page["topics"]
            if with_system or not t["name"].startswith("%")
        ]
        for page in answers
    )
    none = "no topics yet; create one with: raftmq topic create NAME"
    titles = ["topic", "queues", "messages", "on disk", "attributes"]
    print_pages(titles, pages, none=none, left=("topic", "attributes"))
    show_problems(silent)


@topic.command("alter")
@NAME
@click.option("--queues", type=click.IntRange(1, 1024), help="Number of queues.")
@click.option("--dedup", type=click.Choice(["off", "retry", "strict"]), help="What counts as a duplicate send.")
@click.option("--ack", type=click.Choice(list(NAMES)), help="When a send to the topic is acknowledged.")
@click.option("--retention", type=KeptFor(), metavar="12h", help="How long messages are kept: 15m, 12h, 7d, forever.")
@NOW
@cluster_options
def alter(
    name: str,
    queues: int | None,
    dedup: str | None,
    ack: str | None,
    retention: int | None,
    now: bool,
    data: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Change the topic NAME, which must exist. What is not named stays as it is."""
    fresh = _attributes_of(dedup, ack, retention)
    if queues is None and not fresh:
        raise click.UsageError("name what changes: --queues, --dedup, --ack or --retention")
    groups = all_groups(admin, data)
    api = AdminApi(groups[FIRST_GROUP])
    with near_name(api, "/v1/topics", name):
        before = _topic(api, name)
    body = {"name": name, "if_exists": "update", "attributes": before["attributes"] | fresh}
    if queues is not None:  # else the numbers of queues stay, even if read and write queues differ
        body["queues"] = queues
    if now:
        body["now"] = True
    elif queues is not None:
        _check_hides_nothing(groups, body)
    answer = api.post("/v1/topics", body)
    after = answer["topic"]
    told = f"{name} has {_queues(after)} {_attributes(after['attributes'])}".rstrip()
    show(as_json, answer, f"{told}; {hidden}" if (hidden := _hidden(after)) else told)


@topic.command("spread")
@NAME
@IN_GROUP
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def spread(name: str, groups: tuple[int, ...], yes: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Give the topic NAME queues in further groups of brokers.

    It gets as many in each as it has in its first one. Producers that choose a queue by a key then choose among more,
    so keys come to other queues: the next message of a key may be read before an earlier one. No topic comes to a
    further group by itself; a new one is in all that there are.
    """
    api = AdminApi(admin_addresses(admin, data))
    with near_name(api, "/v1/topics", name):
        before = _topic(api, name)
    rows = api.local("/v1/broker-groups")["groups"]
    # a node of an earlier release does not report the state
    wanted = groups or tuple(row["group"] for row in rows if row.get("state", "active") == "active")
    if not wanted:
        raise LocalError(
            f"topic {name} stays where it is", "the cluster has one group of brokers", "raftmq status", ExitCode.REFUSED
        )
    which = ", ".join(map(str, wanted))
    if not yes:
        question = f"spread topic {name} over groups {which}? Keys come to other queues."
        click.confirm(question, abort=True, err=True)
    body = {"name": name, "if_exists": "update", "attributes": before["attributes"]}
    answer = api.post("/v1/topics", body | {"groups": sorted(wanted), "move_keys": True})
    show(as_json, answer, f"topic {name} has queues in groups {which}")


@topic.command("gather")
@NAME
@click.option(
    "--in-group",
    "groups",
    multiple=True,
    required=True,
    type=click.IntRange(FIRST_GROUP, GROUPS_MAX),
    metavar="N",
    help="A group of brokers in which the topic takes messages; several times for several.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def gather(name: str, groups: tuple[int, ...], yes: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Let the topic NAME take new messages in fewer groups of brokers.

    Its queues in the others are read out: they stay until every consumer group has read all that is there, and are then
    gone. Producers that choose a queue by a key then choose among fewer, so keys come to other queues: the next message
    of a key may be read before an earlier one. `raftmq topic spread` is the way back.
    """
    api = AdminApi(admin_addresses(admin, data))
    with near_name(api, "/v1/topics", name):
        _topic(api, name)
    which = ", ".join(map(str, sorted({*groups})))
    if not yes:
        question = f"let topic {name} take messages in groups {which} alone? Keys come to other queues."
        click.confirm(question, abort=True, err=True)
    answer = api.post("/v1/topics", {"name": name, "groups": sorted({*groups}), "move_keys": True, "gather": True})
    told = f"topic {name} takes messages in groups {which} alone"
    left = [str(each["group"]) for each in answer["topic"]["queues_in_groups"] if not each["write_queues"]]
    show(as_json, answer, f"{told}; what is in groups {', '.join(left)} is read out" if left else told)


@topic.command("describe")
@NAME
@cluster_options
def describe(name: str, data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the queues of the topic NAME."""
    groups, path = all_groups(admin, data), f"/v1/topics/{quote(name, safe='')}"
    answer = one_topic_with_queues(told_of(groups, "/v1/topics", name, lambda api: api.whole(path, "queues")))
    if as_json:
        print_json({"schema": 1, **answer})
        return
    shown = answer["topic"]
    held = f"{_held(shown)} in {counted(shown['write_queues'], 'queue')}{_read_out(shown)}"
    click.echo(f"{name}: {held} {_attributes(shown['attributes'])}".rstrip())
    if hidden := _hidden(shown):
        click.echo(hidden)
    print_table(
        ["queue", "min offset", "max offset", "remark"],
        [
            [queue_text(queue["queue_id"]), queue["min_offset"], queue["max_offset"], _mark(queue)]
            for queue in answer["queues"]
        ],
        left=("remark",),
    )


@topic.command("delete")
@NAME
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@cluster_options
def delete(name: str, yes: bool, dry_run: bool, data: str | None, admin: str | None, as_json: bool) -> None:
    """Delete the topic NAME with its queues and all groups' offsets for it."""
    groups, path = all_groups(admin, data), f"/v1/topics/{quote(name, safe='')}"
    api = AdminApi(groups[FIRST_GROUP])

    def held() -> dict[str, Any]:
        return one_topic(told_of(groups, "/v1/topics", name, lambda each: _topic(each, name)))

    if dry_run:
        with near_name(api, "/v1/topics", name):
            plan = api.delete(f"{path}?dry_run=true")
        if len(groups) > 1:
            plan["topic"] = held()
        show(as_json, plan, f"nothing was changed; {name} would go with {_held(plan['topic'])}")
        return
    before = held() if len(groups) > 1 or not yes else {}
    if not yes:
        click.confirm(f"delete {name} with {_held(before)}?", abort=True, err=True)
    answer = api.delete(path)
    if len(groups) > 1:  # further groups follow the first one; their figures come from before the deletion
        answer["topic"] = before
    show(as_json, answer, f"deleted {name} ({counted(answer['topic']['messages'])})")


@topic.command("hot")
@cluster_options
def hot(data: str | None, admin: str | None, as_json: bool) -> None:
    """Show the topics, queues and keys that get most of the messages.

    The shares are those of the last five seconds, of the messages of one group of brokers, estimated from one of 64
    messages. A key is the sharding key by which a producer chose a queue, else the first word of KEYS.
    """
    told, silent = told_by_each(all_groups(admin, data), lambda api: api.local("/v1/hot"))
    show_problems(silent)
    if as_json:
        print_json({"schema": 1, **in_one(told)})
        return
    for group, answer in told.items():
        where = f"group {group}: " if len(told) > 1 else ""
        if not answer["window_ms"]:
            click.echo(f"{where}no messages in the last 5 s")
            continue
        click.echo(
            f"{where}{answer['messages_per_s']:.0f} messages/s, the leader is busy {answer['busy']:.0%} of the time"
        )
        print_table(
            ["topic", "queue", "key", "share", "messages/s"], list(_hot_rows(group, answer)), left=("topic", "key")
        )


def _hot_rows(group: int, answer: dict[str, Any]) -> Iterator[list[object]]:
    """Yields the rows of a group: topics, then queues, then keys, a few of each."""
    for kind in ("topics", "queues", "keys"):
        for each in answer[kind][:HOT_SHOWN]:
            queue = queue_text(number_of(group, each["queue_id"])) if "queue_id" in each else None
            figures = [f"{each['share']:.0%}", f"{each['messages_per_s']:.0f}"]
            yield [each["topic"], queue, each.get("key"), *figures]


def _queues(topic: dict[str, Any]) -> str:
    """Returns a text such as "8 queues", "8 queues in group 2", "8 queues in each of the groups 1, 2" or "8 queues in
    group 1, 6 in group 2"; the groups are left out if the topic has queues in the first one alone. Groups in which the
    topic is only read are named at the end."""
    placed = {each["group"]: each["write_queues"] for each in topic.get("queues_in_groups", ())}
    placed = {group: count for group, count in placed.items() if count}
    return _written_queues(topic, placed) + _read_out(topic)


def _read_out(topic: dict[str, Any]) -> str:
    """Returns a text such as ", group 2 is read out", for groups in which the topic takes no new messages; "" if
    producers write to the topic in all of its groups."""
    rows = topic.get("queues_in_groups", ())
    return "".join(f", group {row['group']} is read out" for row in rows if not row["write_queues"])


def _written_queues(topic: dict[str, Any], placed: dict[int, int]) -> str:
    """Returns the text about the queues in groups to which producers write. `placed`: group -> its write queues."""
    if placed.keys() <= {FIRST_GROUP}:
        return counted(topic["write_queues"], "queue")
    first, *others = placed.items()
    if others and len({*placed.values()}) == 1:
        return f"{counted(first[1], 'queue')} in each of the groups {', '.join(map(str, placed))}"
    return ", ".join(
        [f"{counted(first[1], 'queue')} in group {first[0]}", *(f"{count} in group {group}" for group, count in others)]
    )


def _mark(queue: dict[str, Any]) -> str:
    return "hidden" if queue.get("hidden") else ""


def _topic(api: AdminApi, name: str) -> dict[str, Any]:
    """Returns the topic's own fields, without reading further pages of its queues. Raises LocalError."""
    found: dict[str, Any] = api.page(f"/v1/topics/{quote(name, safe='')}?consistency=linearizable")["topic"]
    return found


def _bytes(topic: dict[str, Any]) -> str | None:
    """Returns the size of the topic's messages in a node's log as text, and how many messages are only in the tier;
    None if it was not measured, or if an older node does not report it."""
    if topic.get("bytes") is None:
        return None
    size = ("" if topic["bytes_exact"] else "about ") + size_of(topic["bytes"])
    return f"{size} + {topic['evicted']} in the tier" if topic.get("evicted") else size


def _held(topic: dict[str, Any]) -> str:
    """Returns a text such as "3 messages (1.2 KiB)", "80 messages (9.1 KiB, 60 of them hidden)" or "80 messages (9.1
    KiB on the nodes, 70 of them in the tier alone)"."""
    evicted = topic.get("evicted", 0)
    kept = _bytes({**topic, "evicted": 0})
    if evicted and kept:
        kept = f"{kept} on the nodes, {evicted} of them in the tier alone"
    hidden = topic.get("hidden", 0)  # an older node does not report their number
    about = [text for text in (kept, f"{hidden} of them hidden" if hidden else None) if text]
    return counted(topic["messages"]) + (f" ({', '.join(about)})" if about else "")


def _hidden(topic: dict[str, Any]) -> str:
    """Returns a sentence about the topic's hidden messages; "" if it has none."""
    hidden = topic.get("hidden", 0)
    if not hidden:
        return ""
    last = topic["read_queues"] - 1
    read = f"queues 0 to {last}" if last else "queue 0"
    return f"{counted(hidden)} hidden: consumers read only {read}; more queues bring them back"


def _attributes(attributes: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(attributes.items()))
