"""`raftmq consume`: print the messages of a topic, for oneself or as a member of a group."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from raftmq.commands.common import connect, json_option, servers_option

if TYPE_CHECKING:
    from raftmq.client import Client, Consumer, Message, QueueInfo


class Stop:
    """SIGINT and SIGTERM for a command that must not be cut off between two steps.

    Notes the signal; the command looks at `asked` between its steps. A second one interrupts whatever it does.
    """

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False
        self._before: dict[signal.Signals, signal.Handlers | object] = {}

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, the first signal raises KeyboardInterrupt too: for a step that may block and may be cut off."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        interrupts = self._at_once or self.asked
        self.asked = True
        if interrupts:
            raise KeyboardInterrupt

    def __enter__(self) -> Stop:
        self._before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]  # what signal.signal itself returned


_IDLE_S = 0.1
_COMMIT_S = 1.0
_TICK_S = 0.2
"""Time after which a signal is looked at while no message comes, in seconds."""
_PULL_MESSAGES = 32


class StartType(click.ParamType[str | int]):
    """earliest, latest, or a queue offset."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Checks the word or number."""
        text = str(value)
        if text not in ("earliest", "latest") and not (text.isascii() and text.isdigit()):
            self.fail(f"{text!r} is not earliest, latest or an offset (0 or more)", param, ctx)
        return int(text) if text.isdigit() else text


@click.command()
@click.argument("topic")
@click.option("--group", metavar="NAME", help="Read as a member of this group and commit the printed messages.")
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET",
    help="Where to begin in each queue; a group resumes at its committed offset.",
)
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
@servers_option
@json_option
def consume(
    topic: str,
    group: str | None,
    start: str | int,
    expression: str | None,
    ordered: bool,
    follow: bool,
    most: int | None,
    servers: str | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one per line, and stop at the end.

    Without --group no offsets are committed. With --json each message is one JSON object with its queue, offset, key
    and tag.
    """
    if ordered and not group:
        raise click.UsageError("--ordered needs --group: order is kept among the members of a group")
    with connect(servers) as mq:
        if group:
            options: dict[str, Any] = {"start": start, "filter": expression, "ordered": ordered, "follow": follow}
            with Stop() as stop, mq.consumer(group, topic, **options) as member:
                count = _print_and_commit(member, most, stop, as_json=as_json)
            if stop.asked and not follow:
                raise KeyboardInterrupt
        else:
            count = _print_all(_alone(mq, topic, start, expression, follow), most, as_json=as_json, follow=follow)
    stopped = most is not None and count == most
    what = f"{count} message{'' if count == 1 else 's'}"
    if stopped:
        click.echo(f"stopped after {what} (--max {most})", err=True)
    elif follow:
        click.echo(f"stopped after {what}", err=True)
    else:
        click.echo(f"end of {topic} after {what}; --follow waits for more", err=True)


def _print_and_commit(member: Consumer, most: int | None, stop: Stop, *, as_json: bool) -> int:
    """Prints until the end, `most` or a signal; returns how many. What is printed is committed after a second at most,
    whether or not more messages come.

    Whatever else ends it passes through, so that the consumer does not commit a message that was not printed.
    """
    count = committed = 0
    committed_at = time.monotonic()
    while count != most and not stop.asked:
        message = member.poll(_TICK_S)
        if message is not None:
            with stop.at_once():
                _print(message, as_json=as_json)
            count += 1
        elif member.at_end:
            break
        if count > committed and time.monotonic() - committed_at >= _COMMIT_S:
            member.commit()
            committed, committed_at = count, time.monotonic()
    return count


def _print_all(messages: Iterator[Message], most: int | None, *, as_json: bool, follow: bool) -> int:
    """Prints until the end, `most` or (with --follow) Ctrl-C; returns how many."""
    count = 0
    try:
        for message in itertools.islice(messages, most):
            _print(message, as_json=as_json)
            count += 1
    except KeyboardInterrupt:
        if not follow:
            raise
    return count


def _alone(mq: Client, topic: str, start: str | int, expression: str | None, follow: bool) -> Iterator[Message]:
    """All queues in turn, each in its own order, up to where they ended when we began, or on and on."""
    queues = mq.admin.describe_topic(topic).queues
    following = {queue.queue_id: _begin(queue, start) for queue in queues}
    ends = {queue.queue_id: queue.max_offset for queue in queues}
    while True:
        idle = True
        for queue_id, offset in list(following.items()):
            if not follow and offset >= ends[queue_id]:
                del following[queue_id]
                continue
            pulled = mq.pull(topic, queue_id, offset, _PULL_MESSAGES, filter=expression)
            yield from (m for m in pulled.messages if follow or m.queue_offset < ends[queue_id])
            idle = idle and pulled.next_offset == offset
            following[queue_id] = pulled.next_offset
        if not following:
            return
        if idle:
            time.sleep(_IDLE_S)


def _begin(queue: QueueInfo, start: str | int) -> int:
    if start == "latest":
        return queue.max_offset
    return queue.min_offset if isinstance(start, str) else max(start, queue.min_offset)


def _print(message: Message, *, as_json: bool) -> None:
    """A line on stdout at once, so that a reader at the other end of a pipe sees it."""
    out = sys.stdout.buffer
    out.write((json.dumps(to_json(message), ensure_ascii=False).encode() if as_json else message.body) + b"\n")
    out.flush()


def to_json(message: Message) -> dict[str, Any]:
    """One message; its body as text if it is UTF-8, else as `body_base64`."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "store_ms": message.store_ms,
        **body,
    }
