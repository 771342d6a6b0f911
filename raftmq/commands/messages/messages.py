"""`raftmq messages`: browses the messages of a topic, finds single ones, and republishes some of them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from raftmq.commands.command_group import command_group
from raftmq.commands.messages.message import message as find
from raftmq.commands.messages.message_copies import send_copies
from raftmq.commands.messages.printing import FormatType, Printer
from raftmq.commands.messages.start_positions import from_option, walk
from raftmq.commands.name_completion import TOPIC, with_near_miss
from raftmq.commands.point_in_time import PointInTime
from raftmq.commands.shared_options import connect, counted, json_option, servers_option, show
from raftmq.commands.value_types import NameType, QueueType
from raftmq_wire.errors import ExitCode, LocalError
from raftmq_wire.queue_numbers import queue_text, queues_text

if TYPE_CHECKING:
    from raftmq.client import Client, Message
    from raftmq.client.consuming.offsets import Start

REPUBLISHED_MAX = 10_000
"""The most messages of one `republish`: they are held in memory, and each is confirmed separately."""


class PatternType(click.ParamType["re.Pattern[bytes]"]):
    """A regular expression on the command line, which is applied to the bytes of a body."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[bytes]:
        """Compiles the expression."""
        if isinstance(value, re.Pattern):
            return value
        try:
            return re.compile(str(value).encode())
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)


class SelectedMessages(NamedTuple):
    """The messages of a topic that a person selects. `queues`: () for all. `until`: log time in milliseconds,
    exclusive; None for no bound. `pattern`: an expression that bodies must match. `expression`: an SQL92 filter."""

    queues: tuple[int, ...]
    start: Start
    until: int | None
    pattern: re.Pattern[bytes] | None
    expression: str | None

    def of_topic(self, mq: Client, topic: str) -> Iterator[Message]:
        """Yields the selected messages, queue by queue. Raises LocalError if there is no such topic or queue."""
        with with_near_miss(topic, mq.admin.topics):
            known = {queue.queue_id for queue in mq.admin.describe_topic(topic).queues}
        if wrong := sorted(set(self.queues) - known):
            raise LocalError(
                f"{topic} has no queue {queue_text(wrong[0])}",
                f"it has the queues {queues_text(known)}",
                f"raftmq topic describe {topic}",
                ExitCode.REFUSED,
            )
        for one in walk(mq, topic, self.start, queues=self.queues, expression=self.expression):
            if self.until is not None and one.store_ms >= self.until:
                continue
            if self.pattern is None or self.pattern.search(one.decoded().body):
                yield one


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that select messages of a topic; the command gets them as `wanted`."""

    @functools.wraps(command)
    def with_wanted(
        queues: tuple[int, ...],
        start: Start,
        until: int | None,
        pattern: re.Pattern[bytes] | None,
        expression: str | None,
        **more: Any,
    ) -> Any:
        return command(wanted=SelectedMessages(queues, start, until, pattern, expression), **more)

    options = (
        click.option("--queue", "queues", type=QueueType(), multiple=True, help="This queue alone; repeatable."),
        from_option("Where to begin in each queue."),
        click.option("--until", type=PointInTime(ages=True), metavar="TIME",
                     help="Only messages stored before this time."),
        click.option("--body", "pattern", type=PatternType(), metavar="REGEX", help="Only bodies that match."),
        click.option("--filter", "expression", metavar="SQL92", help="Only messages whose properties fit."),
    )  # fmt: skip
    return functools.reduce(lambda made, option: option(made), reversed(options), with_wanted)


@command_group()
def messages() -> None:
    """Browse and find messages; send some again."""


messages.add_command(find, "find")


@messages.command("browse")
@TOPIC
@selection
@click.option("--max", "most", type=click.IntRange(1), default=32, show_default=True, help="Stop after so many.")
@click.option("--format", "form", type=FormatType(), metavar="TEXT", help="How a message is printed: '{key} {body}'.")
@servers_option
@json_option
def browse(
    topic: str,
    wanted: SelectedMessages,
    most: int,
    form: str | None,
    servers: str | None,
    as_json: bool,
) -> None:
    """Show messages of TOPIC by queue, offset and time, queue by queue. Nothing is committed.

    A body that cannot be decompressed is shown as stored; --body looks at what is shown.
    """
    with connect(servers) as mq:
        found = itertools.islice(wanted.of_topic(mq, topic), most)
        printed = Printer(as_json=as_json, form=form)
        for message in found:
            printed.show(message)
    more = f"; --max {most} shows no more" if printed.count == most else ""
    click.echo(f"{printed.told()}{more}", err=True)


@messages.command("republish")
@TOPIC
@click.option(
    "--to", type=NameType("topic"), metavar="TOPIC", help="Topic that gets the copies (default: the same one)."
)
@selection
@click.option("--again", is_flag=True, help="Also those that were republished there before.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@servers_option
@json_option
def republish(
    topic: str,
    to: str | None,
    wanted: SelectedMessages,
    again: bool,
    dry_run: bool,
    servers: str | None,
    as_json: bool,
) -> int:
    """Send messages of TOPIC again, with body, key, tag and properties.

    A compressed body goes on as it is stored, also one that cannot be decompressed. A message that the cluster does not
    take is named, the others are sent, and the exit code is 1.

    Each copy names its origin in the property RAFTMQ_ORIGIN. What has a copy in the target topic already is left out:
    the same command, repeated, sends nothing twice, unless --again is given. Copies are not copied.
    """
    from raftmq.commands.messages.message_copies import ORIGIN

    target = to or topic
    with connect(servers) as mq, mq.producer() as producer:
        walked = wanted.of_topic(mq, topic)
        chosen = list(itertools.islice((one for one in walked if ORIGIN not in one.properties), REPUBLISHED_MAX + 1))
        if len(chosen) > REPUBLISHED_MAX:
            raise LocalError(
                f"more than {REPUBLISHED_MAX} messages of {topic} fit",
                "nothing was sent; each copy is confirmed by itself",
                f"raftmq messages republish {topic} --from TIME --until TIME    (or --queue, --body)",
                ExitCode.USAGE,
            )
        if dry_run:
            answer = {"topic": topic, "to": target, "selected": len(chosen), "sent": 0}
            show(as_json, answer, f"nothing was sent; {counted(len(chosen))} of {topic} fit")
            return ExitCode.OK
        copied = send_copies(mq, producer, target, chosen, again=again)
    left = len(chosen) - copied.sent - len(copied.left_out)
    rest = f"; {left} had a copy there already (--again sends them too)" if left else ""
    answer = {"topic": topic, "to": target, "selected": len(chosen), "sent": copied.sent}
    show(as_json, answer | copied.to_json(), f"sent {counted(copied.sent)} of {topic} to {target}{rest}")
    return copied.tell()
