"""The records that the demo sends: real data, each made unique by an id at the beginning of its body."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

SAMPLE = "data/sample.jsonl"
"""File with about 2,000 records of the public Debian 12 package index, with long dependency lists shortened."""

LINE_BYTES_MAX = 1 << 20


class InputError(Exception):
    """The file cannot be sent; the text says why."""


class DemoMessage(NamedTuple):
    """One message to send. `message_id` names it in the history and includes a checksum of the body."""

    message_id: str
    body: bytes
    key: str
    tag: str | None


def message_id_of(body: bytes) -> str:
    """Returns the id that a body begins with, followed by a checksum of the body. So a body that was changed on its way
    gets another id than the one that was sent.
    """
    name, separator, _ = body.partition(b"\t")
    shown = name.decode("ascii", "replace") if separator else "?"
    return f"{shown}-{zlib.crc32(body):08x}"


def records(file: Path | None, count: int) -> Iterator[DemoMessage]:
    """Yields `count` records from the lines of a file (or the sample), from its beginning again when it ends."""
    lines = read_lines(file)
    for number, line in enumerate(itertools.islice(itertools.cycle(lines), count)):
        body = b"m%06d\t%s" % (number, line)
        key, tag = _labels(line)
        yield DemoMessage(message_id_of(body), body, key or f"m{number:06d}", tag)


def read_lines(file: Path | None) -> list[bytes]:
    """Returns every line that is not blank. Raises InputError."""
    if file is None:
        data = files("jepsen_like").joinpath(SAMPLE).read_bytes()
    else:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InputError(f"{file}: {error.strerror or error}") from error
    lines = [line for line in data.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{file}: there is no line in it to send")
    for number, line in enumerate(data.splitlines(), 1):
        if len(line) > LINE_BYTES_MAX:
            raise InputError(f"{file}: line {number} has {len(line)} bytes, at most {LINE_BYTES_MAX} are sent")
    return lines


def _labels(line: bytes) -> tuple[str | None, str | None]:
    """Returns key and tag of a package record; None for lines of another kind."""
    try:
        value = json.loads(line)
    except ValueError:
        return None, None
    if not isinstance(value, dict):
        return None, None
    key, tag = value.get("package"), value.get("section")
    return (key if _is_label(key) else None), (tag if _is_label(tag) else None)


def _is_label(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip()) and " " not in value
