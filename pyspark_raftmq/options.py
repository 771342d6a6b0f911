"""The options of ``spark.read.format("raftmq")``, checked before anything is asked of a cluster."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

from pyspark_raftmq.errors import OptionError
from raftmq.arrow.columns import COLUMNS
from raftmq.arrow.ranges import EARLIEST, LATEST, Bound, Bounds
from raftmq.client.discovery import parse_servers

DEFAULT_BATCH_ROWS = 8192
MAX_BATCH_ROWS = 1 << 20
OPTIONS = ("servers", "topic", "columns", "startingOffsets", "endingOffsets", "batchRows")
"""As documented; Spark compares option names without case."""
# Spark hands these to every source: a path given to load(), and what it adds for its own use.
_SPARKS_OWN = frozenset(("__partition_columns",))


class ReadOptions(NamedTuple):
    """What to read. `starting` is inclusive, `ending` exclusive; `batch_rows` is the most rows of one Arrow batch."""

    servers: str
    topic: str
    columns: tuple[str, ...]
    starting: Bounds
    ending: Bounds
    batch_rows: int


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Spark's options, names in any case. Raises OptionError naming the option and what to write."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        _check_known(name)
    return ReadOptions(
        servers=_servers(_required(given, "servers", "127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878")),
        topic=_required(given, "topic", "orders"),
        columns=_columns(given.get("columns")),
        starting=_bounds("startingOffsets", given.get("startingoffsets", EARLIEST), EARLIEST),
        ending=_bounds("endingOffsets", given.get("endingoffsets", LATEST), LATEST),
        batch_rows=_batch_rows(given.get("batchrows", str(DEFAULT_BATCH_ROWS))),
    )


def _check_known(name: str) -> None:
    if name in _SPARKS_OWN or name in (option.lower() for option in OPTIONS):
        return
    if name == "path":
        raise OptionError(
            "a path was given, and raftmq has none", "load(PATH) sets the option path", '.option("topic", …).load()'
        )
    raise OptionError(f'unknown option "{name}"', f"the options are {', '.join(OPTIONS)}", _nearest(name, OPTIONS))


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {option.lower(): option for option in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[found[0]]}?" if found else "leave it out"


def _required(given: Mapping[str, str], name: str, example: str) -> str:
    value = given.get(name, "").strip()
    if not value:
        raise OptionError(f"the option {name} is missing", "without it there is nothing to read", _write(name, example))
    return value


def _write(name: str, value: str) -> str:
    return f"""write .option("{name}", "{value}")"""


def _servers(text: str) -> str:
    try:
        return ";".join(parse_servers(text))
    except ValueError as error:
        raise OptionError(
            f"the option servers is not understood: {text}", str(error), _write("servers", "host:9876;host:9876")
        ) from error


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(COLUMNS)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise OptionError(
                f'unknown column "{name}" in the option columns',
                f"the columns are {', '.join(COLUMNS)}",
                _nearest(name, COLUMNS),
            )
    if len(set(names)) != len(names):
        raise OptionError("a column is named twice in the option columns", text, "name each column once")
    return names


def _batch_rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_BATCH_ROWS:
        raise OptionError(
            f"the option batchRows is {text}",
            f"it must be a whole number from 1 to {MAX_BATCH_ROWS}",
            f"leave it out ({DEFAULT_BATCH_ROWS}), or make it smaller for large messages",
        )
    return int(text)


def _bounds(name: str, text: str, default: Bound) -> Bounds:
    """`earliest`, `latest`, or a JSON object of queue id -> offset or one of those words."""
    if text.strip().lower() in (EARLIEST, LATEST):
        return Bounds(text.strip().lower())
    try:
        table = json.loads(text)
    except ValueError as error:
        _bad_bounds(name, text, str(error), error)
    if not isinstance(table, dict):
        _bad_bounds(name, text, "it is JSON, but no object")
    return Bounds(default, {_queue(name, text, queue): _bound(name, text, table[queue]) for queue in table})


def _queue(name: str, text: str, queue: str) -> int:
    if not queue.isdecimal():
        _bad_bounds(name, text, f'"{queue}" is no queue id')
    return int(queue)


def _bound(name: str, text: str, value: object) -> Bound:
    if value in (EARLIEST, LATEST):
        return str(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _bad_bounds(name, text, f"{value!r} is no offset")
    return value


def _bad_bounds(name: str, text: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise OptionError(
        f"the option {name} is not understood: {text}",
        why,
        f'write earliest, latest, or offsets by queue: .option("{name}", \'{{"0": 120, "1": "latest"}}\')',
    ) from cause
