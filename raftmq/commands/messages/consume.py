"""`raftmq consume`: prints the messages of a topic, with or without a consumer group."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.messages.printing import FormatType, Printer
from raftmq.commands.messages.start_positions import from_option, walk
from raftmq.commands.name_completion import TOPIC, complete_groups, with_near_miss
from raftmq.commands.shared_options import INTERRUPTED, connect, counted, json_option, servers_option
from raftmq.commands.stop import Stop
from raftmq.commands.value_types import NameType

if TYPE_CHECKING:
    from raftmq.client import Consumer, Message
    from raftmq.client.consuming.offsets import Start


_COMMIT_S = 1.0
_TICK_S = 0.2
"""Interval in seconds at which the command looks for a signal while no message comes."""


@click.command()
@TOPIC
@click.option(
    "--group",
    type=NameType("group"),
    metavar="NAME",
    shell_complete=complete_groups,
    help="Read as a member of this group and commit the printed messages.",
)
@from_option("Where to begin in each queue (2h: two hours ago); a group resumes at its committed offset.")
@click.option(
    "--filter",
    "expression",
    metavar="SQL92",
    help="Print only messages whose properties fit, for example: price > 10 AND TAGS = 'new'.",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="With --group: read each queue in its order, by one member of the group at a time. All members should say so.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for new messages at the end, until Ctrl-C or SIGTERM.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--format", "form", type=FormatType(), metavar="TEXT", help="How a message is printed: '{key} {body}'.")
@servers_option
@json_option
def consume(
    topic: str,
    group: str | None,
    start: Start,
    expression: str | None,
    ordered: bool,
    follow: bool,
    most: int | None,
    form: str | None,
    servers: str | None,
    as_json: bool,
) -> int:
    """Print the messages of TOPIC, one per line, and stop at the end.

    A terminal gets time, queue, offset, key, tag and body, a pipe or file bodies only. Without --group no offsets are
    committed. With --json each message is one JSON object with its queue, offset, key and tag. A body that cannot be
    decompressed is printed as stored, and such messages are counted at the end; with --group they go back to the group.
    """
    if ordered and not group:
        raise click.UsageError("--ordered needs --group: order is kept among the members of a group")
    printed, gone_back = Printer(as_json=as_json, form=form), 0
    with connect(servers) as mq, with_near_miss(topic, mq.admin.topics):
        if group:
            options: dict[str, Any] = {"start": start, "filter": expression, "ordered": ordered, "follow": follow}
            with Stop() as stop, mq.consumer(group, topic, **options) as member:
                print_and_commit(member, most, stop, printed)
            interrupted, gone_back = stop.asked, member.undecoded
        else:
            interrupted = _print_all(walk(mq, topic, start, expression=expression, follow=follow), most, printed)
    what = printed.told()
    if gone_back:
        what += f"; {counted(gone_back)} could not be decoded and went back to {group}"
    if most is not None and printed.count == most:
        click.echo(f"stopped after {what} (--max {most})", err=True)
    elif interrupted or follow:
        click.echo(f"stopped after {what}", err=True)
    else:
        click.echo(f"end of {topic} after {what}; --follow waits for more", err=True)
    return INTERRUPTED if interrupted else 0


def print_and_commit(
    member: Consumer, most: int | None, stop: Stop, printed: Printer, clock: Callable[[], float] = time.monotonic
) -> None:
    """Prints messages until the end, `most` or a signal. Printed messages are committed after a second at most by
    `clock`, even if no further message comes.

    Exceptions pass through, so that the consumer does not commit a message that was not printed.
    """
    committed, committed_at = 0, clock()
    while printed.count != most and not stop.asked:
        message = member.poll(_TICK_S)
        if message is not None:
            with stop.at_once():
                printed.show(message)
        elif member.at_end:
            break
        if printed.count > committed and clock() - committed_at >= _COMMIT_S:
            member.commit()
            committed, committed_at = printed.count, clock()


def _print_all(messages: Iterator[Message], most: int | None, printed: Printer) -> bool:
    """Prints messages until the end, `most` or Ctrl-C; returns True after Ctrl-C."""
    try:
        for message in itertools.islice(messages, most):
            printed.show(message)
    except KeyboardInterrupt:
        return True
    return False
