"""Logging of a node: to stderr, as text for people or JSON lines for machines. One line per record, always.

Texts of clients get into the log, and a terminal obeys some characters that it is shown. So each character that is not
printable is escaped here, in both forms, whichever module has logged it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec

from cluster.config.local_layout import NodeName
from cluster.runtime.output_file import OutputFile

PACKAGES: Final = ("raftlog", "statemachine", "cluster", "raftmq", "jepsen_like")
"""Packages whose log level [log_output] level sets; other libraries log from `warning` up."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO, output: OutputFile | None) -> None:
        super().__init__(stream)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self._output is not None:
            self._output.look()


def setup(
    level: str, form: str, node: NodeName, stream: TextIO | None = None, output: OutputFile | None = None
) -> None:
    """Configures the process's logging, at first or again. `level` and `form` are those of [log_output]. `node`: the
    node's name. `output` is the file behind stderr, if this process is to keep it within its size."""
    handler = _Handler(stream or sys.stderr, output)
    handler.setFormatter(JsonFormatter(node) if form == "json" else TextFormatter(node))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, TextFormatter | JsonFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """Sets the level from which on the product's own packages log; `level` is one of [log_output]."""
    for name in PACKAGES:
        logging.getLogger(name).setLevel(level.upper())


def level() -> Literal["debug", "info", "warning", "error"]:
    """Returns the level that `set_level` was called with last; "warning" before."""
    names: dict[int, Literal["debug", "info", "warning", "error"]] = {
        logging.DEBUG: "debug",
        logging.INFO: "info",
        logging.ERROR: "error",
    }
    return names.get(logging.getLogger(PACKAGES[0]).getEffectiveLevel(), "warning")


class TextFormatter(logging.Formatter):
    """Formats a record as `2026-11-20T08:15:21.042Z INFO  node 1 cluster.node: text key=value`."""

    def __init__(self, node: NodeName) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line; line breaks in texts and tracebacks become ` | `, and other characters that
        are not printable are escaped."""
        extra = "".join(f" {key}={value}" for key, value in extras(record).items())
        text = f"{record.getMessage()}{extra}"
        if record.exc_info:
            text = f"{text} | {self.formatException(record.exc_info)}"
        line = " | ".join(part for part in text.splitlines() if part.strip())
        return printable(f"{timestamp(record)} {record.levelname:<7} node {self._node} {record.name}: {line}")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line: time, level, node, logger, message, error (a traceback), and the
    record's extras."""

    def __init__(self, node: NodeName) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one JSON object on one line."""
        fields: dict[str, Any] = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": _whole(record.getMessage()),
        }
        if record.exc_info:
            fields["error"] = _whole(self.formatException(record.exc_info))
        fields.update({key: _whole(value) for key, value in extras(record).items() if key not in fields})
        return printable(msgspec.json.encode(fields, enc_hook=repr).decode())


def printable(text: str) -> str:
    """Returns the text with each character that is not printable replaced by its escape in JSON, such as \\u001b."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else json.dumps(each)[1:-1] for each in text])


def _whole(value: Any) -> Any:
    """Returns a text without lone surrogates, which UTF-8 cannot encode; other values unchanged."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def extras(record: logging.LogRecord) -> Mapping[str, Any]:
    """Returns the fields that a caller passed as `extra=`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def timestamp(record: logging.LogRecord) -> str:
    """Returns the time of a record, UTC, with milliseconds."""
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


SELDOM_S: Final = 60.0
TOLD_MAX: Final = 256
"""The most different lines that are remembered."""


class Seldom:
    """Logs the same warning at most once a minute, so that repetitions do not fill the log."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """(what, why) -> (time at which it was last logged, number of times it has happened since)."""

    def warn(self, what: str, why: str, now_s: float | None = None) -> None:
        """Logs "what: why", unless it did so within the last minute."""
        now_s = time.monotonic() if now_s is None else now_s
        told_s, times = self._told.get((what, why), (-SELDOM_S, 0))
        if now_s - told_s < SELDOM_S:
            self._told[what, why] = told_s, times + 1
            return
        if len(self._told) >= TOLD_MAX:
            self._told.pop(next(iter(self._told)))
        self._told[what, why] = now_s, 0
        more = f" ({times} more times since the last message)" if times else ""
        self._logger.warning("%s: %s%s", what, why, more)
