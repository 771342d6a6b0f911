"""`produce` and `consume` without a cluster: how lines are read, what outcomes amount to, how messages are shown."""

from __future__ import annotations

import io
import json
from concurrent.futures import Future
from typing import Any

import pytest

from raftmq.client.errors import NotFound, RaftMQError, Refused, Unknown, Unreachable
from raftmq.client.message import Message
from raftmq.commands.messages.printing import to_json
from raftmq.commands.messages.produce import Tally, read_lines
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row


def lines(
    text: bytes, key: str | None = None, tag: str | None = None
) -> list[tuple[int, bytes, str | None, str | None]]:
    return [tuple(line)[:4] for line in read_lines(io.BytesIO(text), key, tag)]  # type: ignore[misc]


def test_every_line_is_a_message_blank_ones_are_not_and_only_the_newline_goes() -> None:
    assert lines(b"one\n\n  \r\ntwo\r\nthree") == [
        (1, b"one", None, None),
        (4, b"two\r", None, None),
        (5, b"three", None, None),
    ]


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    assert lines(b"\xff\x00\xfe\n") == [(1, b"\xff\x00\xfe", None, None)]


def test_key_and_tag_from_json_fields() -> None:
    text = b'{"k": "a", "t": "x"}\n{"k": 7, "t": null}\n{"k": "", "t": true}\n'
    assert [row[2:] for row in lines(text, "k", "t")] == [("a", "x"), ("7", None), (None, "true")]


def test_the_whole_line_stays_the_body() -> None:
    assert lines(b'{"k" :  "a"}\n', "k")[0][1] == b'{"k" :  "a"}'


@each_row(
    ("text", "why"),
    [
        (b'{"k": 1}\nplain\n', "line 2 is not JSON"),
        (b'{"k": 1}\n\n[1]\n', "line 3 is JSON, but not an object"),
        (b'{"a": 1, "b": 2}\n', "line 1 has no field 'k'; it has a, b"),
        (b'{"k": {"deep": 1}}\n', "line 1 field 'k' holds a nested object"),
        (b'{"k": [1]}\n', "line 1 field 'k' holds a list"),
        (b'{"k": "\xff"}\n', "line 1 is not JSON"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(text: bytes, why: str) -> None:
    with pytest.raises(LocalError, match=why):
        lines(text, "k")


def outcome(error: Exception | None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


@each_row(
    ("errors", "counts", "code", "line"),
    [
        ([None, None], (2, 0, 0), None, None),
        ([None, Refused("too large", code=13)], (1, 1, 0), ExitCode.FAILED, 2),
        ([None, Refused("the disk is full", code=14)], (1, 1, 0), ExitCode.REFUSED, 2),
        ([NotFound("no topic", code=17)], (0, 1, 0), ExitCode.REFUSED, 1),
        ([Unknown("timeout"), None], (1, 0, 1), ExitCode.UNKNOWN, 1),
        ([Refused("no"), Unknown("timeout")], (0, 1, 1), ExitCode.UNKNOWN, 1),
        ([Unreachable("nobody")], (0, 1, 0), ExitCode.UNREACHABLE, 1),
        ([None, ValueError("a defect: outcome not known")], (1, 0, 1), ExitCode.UNKNOWN, 2),
    ],
)
def test_outcomes_are_kept_apart(
    errors: list[RaftMQError | None], counts: tuple[int, int, int], code: ExitCode | None, line: int | None
) -> None:
    tally = Tally()
    for number, error in reversed(list(enumerate(errors, 1))):
        tally.settle(number, outcome(error))
    assert (tally.sent, tally.failed, tally.unknown) == counts
    if code is None:
        tally.raise_first("t")
        return
    with pytest.raises(LocalError, match=f"^line {line}: ") as caught:
        tally.raise_first("t")
    assert caught.value.exit_code == code


def test_where_the_earliest_line_failed_the_lines_of_unknown_outcome_are_told_apart_from_it() -> None:
    tally = Tally()
    for number, error in ((4, Unknown("timeout")), (2, Refused("no")), (3, Unknown("timeout")), (5, None)):
        tally.settle(number, outcome(error))
    with pytest.raises(LocalError, match=r"^line 2: no") as caught:
        tally.raise_first("t")
    assert caught.value.why == (
        "1 message was not stored; 2 messages may or may not be stored, the first of them line 3"
    )
    tally.settle(1, outcome(Unknown("timeout")))
    with pytest.raises(LocalError, match=r"^line 1: timeout") as caught:
        tally.raise_first("t")
    assert caught.value.why == "3 messages may or may not be stored", "the first of them is the line that is named"


def message(body: bytes) -> Message:
    return Message("t", 3, 7, 4096, body, "k", None, {"KEYS": "k"}, "ID", 1, 2)


def test_messages_as_json() -> None:
    shown = to_json(message("grüße".encode()))
    assert (shown["body"], shown["queue_id"], shown["queue_offset"], shown["key"], shown["tag"]) == (
        "grüße",
        3,
        7,
        "k",
        None,
    )
    assert "body" not in to_json(message(b"\xff"))
    assert to_json(message(b"\xff"))["body_base64"] == "/w=="
    assert json.loads(json.dumps(to_json(message(b"\x00")))) == to_json(message(b"\x00"))
