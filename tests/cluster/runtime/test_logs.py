"""Logging: one line per record whatever it holds, in both forms."""

from __future__ import annotations

import io
import json
import logging
import unicodedata
from collections.abc import Iterator

import pytest

from cluster.runtime.logs import PACKAGES, setup


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in PACKAGES}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, old in levels.items():
        logging.getLogger(name).setLevel(old)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def fail() -> None:
    raise ValueError("first\nsecond")


def log_an_error() -> None:
    try:
        fail()
    except ValueError:
        logging.getLogger("cluster.node").exception("it broke\n\nbadly")


def test_text() -> None:
    stream = io.StringIO()
    setup("info", "text", 2, stream)
    logging.getLogger("cluster.node").info("term %d", 5, extra={"leader": 3})
    log_an_error()
    first, second = lines(stream)
    at, _, rest = first.partition(" ")
    assert rest == "INFO    node 2 cluster.node: term 5 leader=3"
    assert at.endswith("Z")
    assert "it broke | badly | Traceback" in second
    assert second.endswith("| ValueError: first | second")


def test_json() -> None:
    stream = io.StringIO()
    setup("info", "json", 2, stream)
    logging.getLogger("cluster.node").info("term %d", 5, extra={"leader": 3, "what": {1}, "level": "no"})
    log_an_error()
    first, second = (json.loads(line) for line in lines(stream))
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "node": 2,
        "logger": "cluster.node",
        "message": "term 5",
        "leader": 3,
        "what": [1],
    }
    assert second["message"] == "it broke\n\nbadly"
    assert second["error"].endswith("ValueError: first\nsecond")


NOT_ASSIGNED = {"Cn", "Co"}
"""Categories of the characters that Unicode gives no meaning, or leaves to others: 970,000 that are treated alike."""


def unprintable() -> str:
    """All characters that have a meaning and are not printable, and each 211th of the others."""
    codes = (code for code in range(0x110000) if not chr(code).isprintable())
    return "".join(
        chr(code) for code in codes if code % 211 == 0 or unicodedata.category(chr(code)) not in NOT_ASSIGNED
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_character_that_a_terminal_obeys_is_written(form: str) -> None:
    logging.getLogger().handlers.clear()  # a report of pytest cannot hold these
    stream = io.StringIO()
    setup("info", form, 2, stream)
    every = unprintable()
    assert {unicodedata.category(each) for each in every} >= {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"} | NOT_ASSIGNED
    for name in ("cluster.node", "aiohttp.server"):
        logging.getLogger(name).warning("client %s", every, extra={"group": every})
        try:
            raise ValueError(every)
        except ValueError:
            logging.getLogger(name).exception("it broke")
    written = stream.getvalue()
    assert len(written.split("\n")) == 5
    assert written.replace("\n", "").isprintable()
    assert "\\u001b" in written
    assert "\\u009b" in written


def test_levels() -> None:
    stream = io.StringIO()
    setup("warning", "text", 1, stream)
    logging.getLogger("cluster.node").info("hidden")
    setup("debug", "text", 1, stream)
    logging.getLogger("raftlog.core").debug("seen once, although set up twice")
    logging.getLogger("aiohttp.server").info("libraries speak from warning up")
    assert [line.rpartition(": ")[2] for line in lines(stream)] == ["seen once, although set up twice"]
