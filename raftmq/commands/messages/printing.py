"""Prints messages on standard output: columns on a terminal, bodies in a pipe, JSON, or a format of the user's own."""

from __future__ import annotations

import base64
import datetime
import json
import string
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from raftmq.commands.shared_options import plain, yaml_document, yaml_wanted

if TYPE_CHECKING:
    from raftmq.client import Message

_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0"}
_FIELDS: Final[dict[str, Callable[[Message], str | bytes]]] = {
    "body": lambda one: one.body,
    "id": lambda one: one.message_id,
    "key": lambda one: one.key or "",
    "offset": lambda one: str(one.queue_offset),
    "position": lambda one: str(one.position),
    "queue": lambda one: str(one.queue_id),
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
    """Returns the time at which the message was stored, in local time."""
    return datetime.datetime.fromtimestamp(one.store_ms / 1000).astimezone().isoformat(" ", "milliseconds")


def counted(count: int) -> str:
    """Returns "1 message", "2 messages" and so on."""
    return f"{count} message{'' if count == 1 else 's'}"


def printer(*, as_json: bool, form: str | None) -> Callable[[Message], None]:
    """Returns a function that prints one message as a line and flushes it, so that a reader at the other end of a pipe
    sees it at once."""
    out = sys.stdout.buffer
    line = _line(as_json, form)

    def show(message: Message) -> None:
        out.write(line(message) + b"\n")
        out.flush()

    return show


def _line(as_json: bool, form: str | None) -> Callable[[Message], bytes]:
    if as_json and yaml_wanted():
        return lambda one: yaml_document(to_json(one)).encode().rstrip(b"\n")
    if as_json:
        return lambda one: json.dumps(to_json(one), ensure_ascii=False).encode()
    if form is not None:
        parts = list(string.Formatter().parse(form))
        return lambda one: b"".join(_part(one, text, field) for text, field, *_ in parts)
    return _columns if sys.stdout.isatty() else lambda one: one.body


def _part(one: Message, text: str, field: str | None) -> bytes:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    value = b"" if field is None else _FIELDS[field](one)
    return text.encode() + (value.encode() if isinstance(value, str) else value)


def _columns(one: Message) -> bytes:
    """Returns time, queue, offset, key, tag and body as columns for a person; control characters are escaped, so that
    none of them commands the terminal."""
    when = stored(one)[:23]
    place = f"{when}  {one.queue_id:>3} {one.queue_offset:>8}"
    body = plain(one.body.decode(errors="backslashreplace")).replace("\n", "\\n")
    return f"{place}  {plain(one.key or '-'):<12}  {plain(one.tag or '-'):<8}  {body}".encode()


def to_json(message: Message) -> dict[str, Any]:
    """Returns the JSON form of a message; its body as text if it is UTF-8, else as `body_base64`."""
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
