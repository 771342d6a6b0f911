"""The frames in which a group asks for the truth, on the channel `group`.

    TRUTH         [number, version, level]
    TRUTH_REPLY   [number, version, more]    payload: [[kind, name, row or nil], ...] in msgpack

`version` of a question is the one that the asking group has; of an answer, the one to which its rows bring, or NOBODY:
the node that was asked does not lead the first group. An answer to NEWS, which no question has as its number, says that
there is a later version: it is asked for now. `level` is that of the asking group: it gets no row that its log
may not have. Rows are checked by the command that copies them
(`statemachine.truth.CopyTruth`).
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
"""Numbers of questions begin after it."""
PAYLOAD_MAX: Final = 960 << 10
"""The longest payload that is decoded, bytes: less than a frame of the channel may have. A page has PAGE_BYTES, unless
it is one row."""
ROWS_MAX: Final = PAGE_BYTES // 4


class TruthQuestion(NamedTuple):
    """A question for what changed in the truth."""

    number: int
    version: int
    """The version that the asking group has; 0 if it has nothing."""
    level: int
    """The level of the asking group (statemachine/levels.py)."""


class TruthAnswer(NamedTuple):
    """An answer to a Question."""

    number: int
    page: TruthPage | None
    """None if the node that was asked cannot show that it leads the first group, or nothing can follow that version."""


def too_low(level: int) -> str:
    """Returns why a group of that level neither copies the truth nor changes it, and what to do."""
    return f"this group has level {level}, and several groups need {GROUPS_LEVEL}: raftmq upgrade finalize"


def question_header(question: TruthQuestion) -> list[Any]:
    """Returns the header of the frame."""
    return list(question)


def read_question(header: list[Any]) -> TruthQuestion:
    """Reads the header. Raises WireError."""
    match header:
        case [int(number), int(version), int(level)] if (
            0 <= number < NUMBER_MAX and 0 <= version <= INDEX_MAX and 0 <= level <= LEVEL_MAX
        ):
            return TruthQuestion(number, version, level)
    raise WireError(f"malformed question for the truth: {header!r:.200}")


def answer_frame(answer: TruthAnswer) -> tuple[list[Any], bytes]:
    """Returns header and payload of the frame."""
    if answer.page is None:
        return [answer.number, NOT_LEADING, False], b""
    return [answer.number, answer.page.version, answer.page.more], msgpack.packb(answer.page.rows)


def read_answer(header: list[Any], payload: bytes) -> TruthAnswer:
    """Reads header and payload. Raises WireError."""
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
