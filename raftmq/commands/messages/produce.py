"""`raftmq produce`: sends each line of stdin or of a file as a message."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from raftmq.commands.name_completion import TOPIC
from raftmq.commands.shared_options import (
    WHICH_CLUSTER,
    connect,
    console,
    counted,
    exit_code_of,
    json_option,
    print_json,
    servers_option,
)
from raftmq.local_path import LocalPath
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from raftmq.client import Client


class Line(NamedTuple):
    """A line that is to become a message: `number` counts all lines of the input from 1; `end` is the position of the
    byte after it."""

    number: int
    body: bytes
    key: str | None
    tag: str | None
    end: int


@click.command()
@TOPIC
@click.option(
    "--file",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file instead of stdin.",
)
@click.option("--key-field", metavar="NAME", help="Lines are JSON objects; take the key from this field.")
@click.option("--tag-field", metavar="NAME", help="Lines are JSON objects; take the tag from this field.")
@click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Deliver each message so much later.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Send at most N messages per second."
)
@servers_option
@json_option
def produce(
    topic: str,
    file: Path | None,
    key_field: str | None,
    tag_field: str | None,
    delay: float | None,
    rate: float | None,
    servers: str | None,
    as_json: bool,
) -> None:
    """Send each line of stdin or a file as a message to TOPIC.

    Blank lines are skipped; any other line is sent as it is, without its newline. The command stops at the first line
    that cannot be sent and prints its number; the lines before it have been sent.
    """
    began = time.monotonic()
    tally = Tally()
    try:
        if file is None:
            _send(sys.stdin.buffer, None, topic, key_field, tag_field, delay, rate, servers, tally)
        else:
            with file.open("rb") as lines:
                _send(lines, file.stat().st_size, topic, key_field, tag_field, delay, rate, servers, tally)
    finally:
        seconds = time.monotonic() - began
        if sys.exc_info()[0] is not None and not tally.settled:
            pass  # no send was tried; the error says why
        elif as_json:
            created = tally.near is not None
            print_json(
                {"schema": 1, "topic": topic, **tally.to_json(), "created": created, "seconds": round(seconds, 3)}
            )
        else:
            click.echo(f"sent {counted(tally.sent)} to {topic} in {seconds:.1f} s{tally.rest()}", err=True)
        if tally.near is not None:
            meant = f" Did you mean {tally.near}?" if tally.near else ""
            forbid = "raftmq config set topics.auto_create false"
            click.echo(
                f"the topic {topic} did not exist: its first message created it.{meant} To forbid that: {forbid}",
                err=True,
            )
    tally.raise_first(topic)


class Tally:
    """Counts the outcomes of sends, in the client's thread, and keeps the error of the earliest line that has one."""

    def __init__(self) -> None:
        self.sent = self.failed = self.unknown = 0
        self.first: tuple[int, BaseException] | None = None
        self.first_unknown: int | None = None
        """The earliest line whose outcome is unknown; None if there is none."""
        self.near: str | None = None
        """If the sends created their topic: the existing topic with the most similar name, or "". None if the topic
        existed before."""
        self._lock = threading.Lock()

    def settle(self, line: int, future: Future[Any]) -> None:
        """Counts the outcome of one send."""
        from raftmq.client.errors import RaftMQError, Unknown

        error = future.exception()
        with self._lock:
            if error is None:
                self.sent += 1
                return
            if isinstance(error, RaftMQError) and not isinstance(error, Unknown):
                self.failed += 1
            else:
                self.unknown += 1
                self.first_unknown = line if self.first_unknown is None else min(line, self.first_unknown)
            if self.first is None or line < self.first[0]:
                self.first = (line, error)

    @property
    def settled(self) -> int:
        """The number of sends with an outcome."""
        return self.sent + self.failed + self.unknown

    def to_json(self) -> dict[str, int]:
        """Returns the counts by outcome."""
        return {"sent": self.sent, "failed": self.failed, "unknown": self.unknown}

    def rest(self) -> str:
        """Returns the numbers of failed and unknown sends in words; "" if there are none."""
        parts = [f"{count} {word}" for count, word in ((self.failed, "failed"), (self.unknown, "unknown")) if count]
        return f" ({', '.join(parts)})" if parts else ""

    def raise_first(self, topic: str) -> None:
        """Raises LocalError about the earliest line whose send did not succeed. If any outcome is unknown, the error's
        second line and its exit code say so; otherwise they say how many sends failed. If the earliest line failed, the
        second line also names the earliest one whose outcome is unknown."""
        if self.first is None:
            return
        number, error = self.first
        failed = f"{counted(self.failed)} {'was' if self.failed == 1 else 'were'} not stored"
        if self.unknown:
            why = f"{counted(self.unknown)} may or may not be stored"
            if number != self.first_unknown:
                why = f"{failed}; {why}, the first of them line {self.first_unknown}"
            raise LocalError(
                f"line {number}: {error}",
                why,
                f"check before you send them again: raftmq consume {topic}",
                ExitCode.UNKNOWN,
            )
        code = exit_code_of(error)
        hint = WHICH_CLUSTER if code is ExitCode.UNREACHABLE else getattr(error, "hint", "") or "raftmq status"
        raise LocalError(f"line {number}: {error}", failed, hint, code)


def _send(
    source: IO[bytes],
    size: int | None,
    topic: str,
    key_field: str | None,
    tag_field: str | None,
    delay: float | None,
    rate: float | None,
    servers: str | None,
    tally: Tally,
) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    screen = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    with connect(servers) as mq, contextlib.ExitStack() as ends:
        ends.callback(lambda: _note_created(mq, topic, tally))  # runs last, when all sends are settled
        producer = ends.enter_context(mq.producer())
        ends.enter_context(bar)
        task = bar.add_task("sending", total=size)
        began = time.monotonic()
        for count, line in enumerate(read_lines(source, key_field, tag_field)):
            if rate is not None:
                time.sleep(max(0.0, began + count / rate - time.monotonic()))
            if tally.first is not None:
                return
            future = producer.send_soon(topic, line.body, key=line.key, tag=line.tag, delay=delay)
            future.add_done_callback(functools.partial(tally.settle, line.number))
            if line.number % 256 == 0:
                bar.update(task, completed=line.end, description=f"sent {tally.sent:,}")


def _note_created(mq: Client, topic: str, tally: Tally) -> None:
    """Records in the tally that its sends created the topic, with the most similar name of another topic."""
    from cluster.config.source import nearest
    from raftmq.client.errors import RaftMQError

    if topic not in mq.created_topics or not tally.sent:
        return
    tally.near = ""
    with contextlib.suppress(RaftMQError):  # the user may not be allowed to list topics
        tally.near = nearest(topic, [each for each in mq.admin.topics() if each != topic]) or ""


def read_lines(source: IO[bytes], key_field: str | None = None, tag_field: str | None = None) -> Iterator[Line]:
    """Yields the lines that are not blank. `key_field`, `tag_field`: the fields of a line's JSON object that hold its
    key and its tag; if both are None, lines may be any text. Raises LocalError naming the line that lacks a field or is
    no JSON object."""
    end = 0
    for number, raw in enumerate(source, 1):
        end += len(raw)
        body = raw.removesuffix(b"\n")
        if not body.strip():
            continue
        fields = _object(body, number) if key_field or tag_field else {}
        yield Line(number, body, _label(fields, key_field, number), _label(fields, tag_field, number), end)


def _object(body: bytes, number: int) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise _bad_line(number, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad_line(number, "is JSON, but not an object with fields")
    return value


def _label(fields: dict[str, Any], name: str | None, number: int) -> str | None:
    if name is None:
        return None
    if name not in fields:
        raise _bad_line(number, f"has no field {name!r}; it has {', '.join(sorted(fields)) or 'none'}")
    value = fields[name]
    if isinstance(value, (dict, list)):
        raise _bad_line(number, f"field {name!r} holds a {'list' if isinstance(value, list) else 'nested object'}")
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _bad_line(number: int, why: str) -> LocalError:
    return LocalError(
        f"line {number} {why}",
        "with --key-field or --tag-field every line is a JSON object with that field; the lines before it were sent",
        f"correct line {number}, or leave the option out; then send from line {number} on",
    )
