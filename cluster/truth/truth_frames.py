"""Encodes and decodes the frames in which a group asks for the truth, on the channel `group`.

    TRUTH         [number, version, level]
    TRUTH_REPLY   [number, version, more]    payload: [[kind, name, row or nil], ...] in msgpack

In a question, `version` is the version that the asking group has. In an answer, it is the version that the group has
once it has copied the rows. It is NOT_LEADING if the node that was asked does not lead the first group, or if no page
can follow the version of the asking group. `more` is True if further pages follow. `level` is the level of the asking
group, which gets no row that its log may not contain.

An answer with the number NEWS belongs to no question: it says that there is a later version, so that the group asks at
once. The command that copies rows checks them (`statemachine.truth.CopyTruth`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from cluster.peer.wire import INDEX_MAX
from cluster.runtime.peer_frames import WireError
from statemachine.levels import GROUPS_LEVEL
from statemachine.truth import PAGE_BYTES, TruthPage

NOT_LEADING: Final = -1
LEVEL_MAX: Final = 65535
NUMBER_MAX: Final = 1 << 63
NEWS: Final = 0
"""The number of an answer that belongs to no question. The numbers of questions begin with 1."""
PAYLOAD_MAX: Final = 960 << 10
"""The longest payload that is decoded, in bytes. It is less than the longest frame of the channel. A page has at most
about PAGE_BYTES, unless it is a single row."""
ROWS_MAX: Final = PAGE_BYTES // 4


class TruthQuestion(NamedTuple):
    """Asks the first group for the rows of the truth that changed after `version`."""

    number: int
    version: int
    """The version that the asking group has; 0 if it has nothing."""
    level: int
    """The level of the asking group (statemachine/levels.py)."""


class TruthAnswer(NamedTuple):
    """The answer to a TruthQuestion. `number` is that of the question, or NEWS."""

    number: int
    page: TruthPage | None
    """The rows that changed. None if the node that was asked cannot show that it leads the first group, or if no page
    can follow the version of the asking group."""


def too_low(level: int) -> str:
    """Returns the message for people that a group of this level can neither copy nor change the truth, with the command
    that helps."""
    return f"this group has level {level}, and several groups need {GROUPS_LEVEL}: raftmq upgrade finalize"


def question_header(question: TruthQuestion) -> list[Any]:
    """Returns the header of a TRUTH frame, [number, version, level]. The frame has no payload."""
    return list(question)


def read_question(header: list[Any]) -> TruthQuestion:
    """Decodes the header of a TRUTH frame. Raises WireError if it is malformed."""
    match header:
        case [int(number), int(version), int(level)] if (
            0 <= number < NUMBER_MAX and 0 <= version <= INDEX_MAX and 0 <= level <= LEVEL_MAX
        ):
            return TruthQuestion(number, version, level)
    raise WireError(f"malformed question for the truth: {header!r:.200}")


def answer_frame(answer: TruthAnswer) -> tuple[list[Any], bytes]:
    """Returns (header, payload) of a TRUTH_REPLY frame."""
    if answer.page is None:
        return [answer.number, NOT_LEADING, False], b""
    return [answer.number, answer.page.version, answer.page.more], msgpack.packb(answer.page.rows)


def read_answer(header: list[Any], payload: bytes) -> TruthAnswer:
    """Decodes the header and payload of a TRUTH_REPLY frame. Raises WireError if they are malformed."""
    match header:
        case [int(number), int(version), bool(more)] if (
            0 <= number < NUMBER_MAX and NOT_LEADING <= version <= INDEX_MAX and len(payload) <= PAYLOAD_MAX
        ):
            if version == NOT_LEADING:
                return TruthAnswer(number, None)
            return TruthAnswer(number, TruthPage(_rows(payload), version, more))
    raise WireError(f"malformed answer about the truth, {len(payload)} bytes: {header!r:.200}")


def _rows(payload: bytes) -> tuple[tuple[int, Any, Any], ...]:
    try:
        rows = msgpack.unpackb(payload, use_list=False, max_array_len=ROWS_MAX)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed rows of the truth: {error}") from error
    if type(rows) is not tuple or not all(type(row) is tuple and len(row) == 3 and type(row[0]) is int for row in rows):
        raise WireError("malformed rows of the truth: no array of [kind, name, row]")
    return rows
