"""Prints messages on standard output: columns on a terminal, bodies in a pipe, JSON, or a format of the user's own."""

from __future__ import annotations

import base64
import string
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from raftmq.commands.point_in_time import time_text
from raftmq.commands.shared_options import counted, json_line, plain, yaml_document, yaml_wanted
from raftmq_wire.queue_numbers import group_of, offset_text, queue_text

if TYPE_CHECKING:
    from raftmq.client import Message

_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0"}
_FIELDS: Final[dict[str, Callable[[Message], str | bytes]]] = {
    "body": lambda one: one.body,
    "id": lambda one: one.message_id,
    "key": lambda one: one.key or "",
    "offset": lambda one: str(one.queue_offset),
    "position": lambda one: offset_text(group_of(one.queue_id), one.position),
    "queue": lambda one: queue_text(one.queue_id),
    "tag": lambda one: one.tag or "",
    "time": lambda one: stored(one),
    "topic": lambda one: one.topic,
}


class FormatType(click.ParamType[str]):
    """The format of a printed message: a text with {body}, {key} and other fields."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Checks the fields that the format names."""
        try:
            parts = list(string.Formatter().parse(str(value)))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        for _, field, spec, conversion in parts:
            if field is not None and (field not in _FIELDS or spec or conversion):
                self.fail(f"{value!r} has {{{field}}}; a field is one of {', '.join(_FIELDS)}", param, ctx)
        return str(value)


def stored(one: Message) -> str:
    """Returns, as text, the time at which the message was stored."""
    return time_text(one.store_ms, exact=True)


def undecoded(count: int) -> str:
    """Returns the end of a sentence that says that `count` bodies cannot be decompressed; "" for 0."""
    return f"; {counted(count)} could not be decoded: body as stored" if count else ""


class Printer:
    """Prints messages, one as a line, and counts them. A body that cannot be decompressed is printed as stored."""

    def __init__(self, *, as_json: bool, form: str | None) -> None:
        self.count = 0
        self.undecoded = 0
        """The number of printed messages whose bodies cannot be decompressed."""
        self._out = sys.stdout.buffer
        self._line = line_of(as_json, form)

    def show(self, message: Message) -> None:
        """Prints one message and flushes it, so that a reader at the other end of a pipe sees it at once."""
        shown = message.decoded()
        self._out.write(self._line(shown) + b"\n")
        self._out.flush()
        self.count += 1
        self.undecoded += bool(shown.undecoded)

    def told(self) -> str:
        """Returns "3 messages", and how many of them could not be decompressed."""
        return counted(self.count) + undecoded(self.undecoded)


def line_of(as_json: bool, form: str | None) -> Callable[[Message], bytes]:
    """Returns the function that makes the line of a message: JSON or YAML if `as_json`, else the format `form`; without
    both, columns on a terminal, and the body alone in a pipe."""
    if as_json and yaml_wanted():
        return lambda one: yaml_document(to_json(one)).encode().rstrip(b"\n")
    if as_json:
        return lambda one: json_line(to_json(one)).encode()
    if form is not None:
        parts = list(string.Formatter().parse(form))
        return lambda one: b"".join(_part(one, text, field) for text, field, *_ in parts)
    return columns_of if sys.stdout.isatty() else lambda one: one.body


def _part(one: Message, text: str, field: str | None) -> bytes:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    value = b"" if field is None else _FIELDS[field](one)
    return text.encode() + (value.encode() if isinstance(value, str) else value)


def columns_of(one: Message) -> bytes:
    """Returns time, queue, offset, key, tag and body as columns for a person; control characters are escaped, so that
    none of them commands the terminal."""
    when = stored(one)[:23]
    place = f"{when}  {queue_text(one.queue_id):>3} {one.queue_offset:>8}"
    body = plain(one.body.decode(errors="backslashreplace")).replace("\n", "\\n")
    remark = f"  ({remark_on(one)})" if one.undecoded else ""
    return f"{place}  {plain(one.key or '-'):<12}  {plain(one.tag or '-'):<8}  {body}{remark}".encode()


def remark_on(one: Message) -> str:
    """Returns the remark for a message whose body cannot be decompressed and is shown as stored."""
    return f"as stored: the body {one.undecoded}"


def body_to_json(one: Message) -> dict[str, str]:
    """Returns the JSON fields of a body: `body` if it is UTF-8, else `body_base64`; and `undecoded`, the reason, if it
    is as stored because it cannot be decompressed."""
    remark = {"undecoded": one.undecoded} if one.undecoded else {}
    try:
        return {"body": one.body.decode(), **remark}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(one.body).decode(), **remark}


def to_json(message: Message) -> dict[str, Any]:
    """Returns the JSON form of a message."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "store_ms": message.store_ms,
        **body_to_json(message),
    }
