"""The place in a topic at which a command begins to read, and the walk from there through the topic's queues."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raftmq.commands.point_in_time import AGES, moment_ms

if TYPE_CHECKING:
    from raftmq.client import Client, Message, QueueInfo
    from raftmq.client.consuming.offsets import Start

_F = TypeVar("_F", bound=Callable[..., Any])
START = "earliest|latest|OFFSET|TIME|2h"
_IDLE_S = 0.1
_PULL_MESSAGES = 32


def from_option(where: str) -> Callable[[_F], _F]:
    """Returns the option --from of a command that reads messages; `where` is its help."""
    return click.option(
        "--from", "start", type=StartType(), default="earliest", show_default=True, metavar=START, help=where
    )


class StartType(click.ParamType["Start"]):
    """A start on the command line: earliest, latest, a queue offset, a time, or an age: 90s, 15m, 2h, 7d."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        """Returns the word earliest or latest as it is, an offset as an int, and a time or an age as a datetime. Raises
        BadParameter for any other text."""
        if isinstance(value, datetime.datetime):
            return value
        text = str(value)
        if text in ("earliest", "latest"):
            return text
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        try:
            return datetime.datetime.fromtimestamp(moment_ms(text) / 1000, datetime.UTC)
        except ValueError:
            self.fail(f"{text!r} is not earliest, latest, an offset (0 or more) or a time: {AGES}", param, ctx)


def walk(
    mq: Client,
    topic: str,
    start: Start,
    *,
    queues: Collection[int] = (),
    expression: str | None = None,
    follow: bool = False,
) -> Iterator[Message]:
    """Yields the messages of all queues, or of `queues`, in turn, each queue in its own order: up to the ends that the
    queues had when the walk began; with `follow`, without end. Bodies are as stored. The caller decompresses a body
    when it needs it, so only one decompressed body is in memory. Raises NotFound if there is no such topic. If the
    topic is deleted and created again meanwhile, continues with its first message if `follow`, else raises NotFound
    too."""
    from raftmq.client import NotFound, Position

    described = mq.admin.describe_topic(topic)
    known = [each for each in described.queues if not queues or each.queue_id in queues]
    following = {queue.queue_id: _begin(mq, topic, queue, start) for queue in known}
    ends = {queue.queue_id: queue.max_offset for queue in known}
    counted_in = {queue.queue_id: queue.counted_in or described.identity for queue in known}
    while True:
        idle = True
        for queue_id, offset in list(following.items()):
            if not follow and offset >= ends[queue_id]:
                del following[queue_id]
                continue
            at = Position(offset, counted_in[queue_id])
            try:
                pulled = mq.pull(topic, queue_id, at, _PULL_MESSAGES, filter=expression, as_stored=True)
            except NotFound:
                if not follow or mq.admin.describe_topic(topic).identity == described.identity:
                    raise
                click.echo(f"{topic} was deleted and created again: its messages follow from the first on", err=True)
                yield from walk(mq, topic, "earliest", queues=queues, expression=expression, follow=True)
                return
            yield from (m for m in pulled.messages if follow or m.queue_offset < ends[queue_id])
            idle = idle and pulled.next_offset == offset
            following[queue_id] = pulled.next_offset
        if not following:
            return
        if idle:
            time.sleep(_IDLE_S)


def _begin(mq: Client, topic: str, queue: QueueInfo, start: Start) -> int:
    if start == "latest":
        return queue.max_offset
    if isinstance(start, datetime.datetime):
        start = mq.admin.offset_at(topic, queue.queue_id, int(start.timestamp() * 1000))
    return queue.min_offset if isinstance(start, str) else max(start, queue.min_offset)
