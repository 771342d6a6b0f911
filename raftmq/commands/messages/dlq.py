"""`raftmq dlq`: lists the dead letters of a consumer group, sends them to the group again, and purges them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.messages.message_copies import copied_before, origin_of, send_copies
from raftmq.commands.name_completion import complete_groups
from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import connect, counted, json_option, print_json, print_table, servers_option, show
from raftmq.commands.value_types import NameType, OffsetType
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.queue_numbers import FIRST_GROUP, group_of, number_of, offset_text

if TYPE_CHECKING:
    from raftmq.client.message import Message
    from raftmq.client.sync import Client

PREFIX, RETRY_PREFIX = "%DLQ%", "%RETRY%"
GROUP = click.argument("group", type=NameType("group"), shell_complete=complete_groups)


@command_group()
def dlq() -> None:
    """List, resend and purge the dead letters of consumer groups."""


@dlq.command("list")
@GROUP
@click.option("--max", "most", type=click.IntRange(1), default=32, show_default=True, help="At most so many.")
@servers_option
@json_option
def list_(group: str, most: int, servers: str | None, as_json: bool) -> None:
    """List the oldest dead letters of GROUP, and which of them were resent."""
    with connect(servers) as mq:
        letters, kept = dead_letters(mq, group, None, most)
        resent = _resent(mq, group, letters)
    if as_json:
        told = [
            _to_json(one.decoded()) | {"resent": None if resent is None else origin_of(one) in resent}
            for one in letters
        ]
        print_json({"schema": 1, "group": group, "kept": kept, "letters": told})
        return
    marks = ["?" if resent is None else "yes" if origin_of(one) in resent else "" for one in letters]
    rows: list[list[object]] = [
        [
            offset_text(*_offset_of(one)),
            time_text(one.store_ms),
            one.properties.get("RETRY_TOPIC", ""),
            one.reconsume_times,
            one.key or "",
            mark,
        ]
        for one, mark in zip(letters, marks, strict=True)
    ]
    if rows:
        titles = ["offset", "stored", "topic", "attempts", "key", "resent"]
        print_table(titles, rows, left=[each for each in titles if each not in ("offset", "attempts")])
    told_marks = f"; {marks.count('yes')} of the {len(marks)} shown resent" if "yes" in marks else ""
    click.echo(f"{_counted(kept)} of {group}{told_marks}")


def _resent(mq: Client, group: str, letters: list[Message]) -> set[str] | None:
    """Returns the origins of those letters that were resent; None if this user may not read the topic with the
    copies."""
    from raftmq.client.errors import Denied

    try:
        return copied_before(mq, RETRY_PREFIX + group, letters)
    except Denied:
        return None


def _counted(count: int) -> str:
    return counted(count, "dead letter")


@dlq.command("resend")
@GROUP
@click.option("--offset", "offsets", type=OffsetType(), multiple=True, help="This one; repeatable.")
@click.option("--all", "everything", is_flag=True, help="All that are kept.")
@click.option("--again", is_flag=True, help="Also those that were resent before.")
@servers_option
@json_option
def resend(
    group: str, offsets: tuple[tuple[int, int], ...], everything: bool, again: bool, servers: str | None, as_json: bool
) -> int:
    """Send dead letters to GROUP again, as if they had not failed before. They stay among the dead letters.

    Bodies go on as they are stored. A letter that the cluster does not take is named, the others are sent, and the exit
    code is 1.

    Each carries its place among the dead letters as the property RAFTMQ_ORIGIN. A letter that was resent before is left
    out, unless --again is given.
    """
    if bool(offsets) == everything:
        raise click.UsageError("name the letters with --offset, or write --all")
    with connect(servers) as mq, mq.producer() as producer:
        letters, _ = dead_letters(mq, group, None if everything else set(offsets), None)
        missing = sorted(set(offsets) - {_offset_of(one) for one in letters})
        if missing:
            raise LocalError(
                f"{group} has no dead letter at offset {offset_text(*missing[0])}",
                "nothing was sent; retention may have removed it",
                f"raftmq dlq list {group}",
            )
        copied = send_copies(mq, producer, RETRY_PREFIX + group, letters, again=again, queue_of=_queue_for)
    sent = copied.sent
    left = len(letters) - sent - len(copied.left_out)
    rest = f"; {left} were resent before (--again sends them too)" if left else ""
    answer = {"group": group, "sent": sent, **copied.to_json()}
    show(as_json, answer, f"sent {counted(sent)} to {RETRY_PREFIX}{group}{rest}")
    return copied.tell()


@dlq.command("purge")
@GROUP
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@servers_option
@json_option
def purge(group: str, yes: bool, dry_run: bool, servers: str | None, as_json: bool) -> None:
    """Delete all dead letters of GROUP."""
    with connect(servers) as mq:
        _, kept = dead_letters(mq, group, set(), None)
        if dry_run:
            told = f"nothing was changed; {_counted(kept)} of {group} would go"
            show(as_json, {"group": group, "deleted": 0, "would_delete": kept}, told)
            return
        if kept and not yes:
            click.confirm(f"delete {_counted(kept)} of {group}?", abort=True, err=True)
        if kept:
            mq.admin.delete_topic(PREFIX + group)
    show(as_json, {"group": group, "deleted": kept}, f"deleted {_counted(kept)} of {group}")


def dead_letters(
    mq: Client, group: str, wanted: set[tuple[int, int]] | None, most: int | None
) -> tuple[list[Message], int]:
    """Returns dead letters, with bodies as stored, and the number of all that are kept. Returns the oldest ones, or
    those in `wanted`, given as (group of brokers, offset), because each group of brokers has its own. A consumer group
    without dead letters has no topic for them: then none are returned. Raises LocalError if there is no such consumer
    group."""
    from raftmq.client.errors import NotFound

    found: list[Message] = []
    kept, is_there = 0, True
    try:
        for number in mq.admin.broker_groups(PREFIX + group):
            own = None if wanted is None else {offset for each, offset in wanted if each == number}
            letters, held = _letters_in(mq, PREFIX + group, number_of(number, 0), own, most)
            found, kept = found + letters, kept + held
    except NotFound:  # there are none, or they were purged in the meantime
        found, kept, is_there = [], 0, False
    if not is_there and _is_missing(mq, group):
        raise LocalError(
            f"there is no consumer group {group}",
            "a group exists once a consumer has joined it",
            "raftmq group list",
            ExitCode.REFUSED,
        )
    return sorted(found, key=lambda one: one.store_ms)[:most], kept


def _letters_in(
    mq: Client, topic: str, queue: int, wanted: set[int] | None, most: int | None
) -> tuple[list[Message], int]:
    """Returns the dead letters in one group of brokers, as `dead_letters` does; `queue` is the number of its queue 0.
    Raises NotFound."""
    low, high = mq.admin.min_offset(topic, queue), mq.admin.max_offset(topic, queue)
    found: list[Message] = []
    offset = low
    while offset < high and (most is None or len(found) < most) and wanted != set():
        pulled = mq.pull(topic, queue, offset, as_stored=True)
        found += [one for one in pulled.messages if wanted is None or one.queue_offset in wanted]
        if pulled.next_offset <= offset:
            break
        offset = pulled.next_offset
    return found, high - low


def _offset_of(letter: Message) -> tuple[int, int]:
    """Returns the group of brokers that has the letter, and its offset there."""
    return group_of(letter.queue_id), letter.queue_offset


def _queue_for(letter: Message) -> int:
    """Returns the queue of the retry topic to which the letter is sent: one in the letter's own group of brokers, which
    may be the only one that has the consumer group's topic."""
    return number_of(group_of(letter.queue_id), 0)


def _is_missing(mq: Client, group: str) -> bool:
    """Returns True if there is no such group; False if this user may not list the groups: then the group exists,
    because reading the offsets of its dead letters was not denied."""
    from raftmq.client.errors import Denied

    try:
        return group not in mq.admin.groups()
    except Denied:
        return False


def _to_json(one: Message) -> dict[str, Any]:
    group = group_of(one.queue_id)
    return {
        "offset": one.queue_offset,
        **({} if group == FIRST_GROUP else {"broker_group": group}),
        "position": one.position,
        "stored_ms": one.store_ms,
        "topic": one.properties.get("RETRY_TOPIC"),
        "attempts": one.reconsume_times,
        "key": one.key,
        "tag": one.tag,
        "body": one.body.decode(errors="backslashreplace"),
        **({"undecoded": one.undecoded} if one.undecoded else {}),
    }
