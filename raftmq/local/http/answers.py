"""Decodes answers of an HTTP API. Reads them up to a limit, because the program at an address may be any other one and
send data without end; and gives clear errors for fields that an older release lacks."""

from __future__ import annotations

import http.client
import json
from typing import Any, NoReturn

from raftmq_wire.errors import LocalError

ANSWER_BYTES_MAX = 256 << 20
_SHOWN_CHARACTERS = 120


class ForeignAnswerError(ValueError):
    """An answer that does not come from the HTTP API, but from another program. Its text begins with the received
    answer."""

    def __init__(self, body: bytes) -> None:
        line = next((line for line in body.decode("utf-8", "replace").splitlines() if line.strip()), "")
        shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line.strip())
        cut = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
        super().__init__(f"it answers: {cut}" if cut else "it answers nothing")


def read_answer(response: http.client.HTTPResponse) -> bytes:
    """Returns the body of an answer. Raises HTTPException if it is longer than ANSWER_BYTES_MAX."""
    with response:
        body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise http.client.HTTPException(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return body


class Answer(dict[str, Any]):
    """An object of an answer. Access to a missing field raises an error that says that the node is older, not a
    KeyError."""

    def __missing__(self, key: str) -> NoReturn:
        raise LocalError(
            f"the answer of a node has no field {key}",
            "the node is of an older release than this command",
            "raftmq upgrade plan    (or use the command of the node's version)",
        )


def loaded(body: bytes, as_object: type[dict[str, Any]] = dict) -> Any:
    """Decodes JSON of an unknown program; each object is an `as_object`. Raises ValueError, also for JSON that is
    nested too deeply."""
    try:
        return json.loads(body, object_hook=None if as_object is dict else as_object)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def decoded(body: bytes) -> Any:
    """Decodes JSON; each object is an `Answer`. Raises ValueError."""
    return loaded(body, Answer)


def answered(status: int, body: bytes) -> Answer:
    """Decodes an answer of the HTTP API. The answer must be an object, and must have an `error` if the status is 400 or
    more. Raises ForeignAnswerError."""
    try:
        answer = decoded(body)
    except ValueError:
        raise ForeignAnswerError(body) from None
    if not isinstance(answer, Answer) or (status >= 400 and not _is_error(answer.get("error"))):
        raise ForeignAnswerError(body)
    return answer


def _is_error(told: object) -> bool:
    return isinstance(told, Answer) and all(isinstance(told.get(name), str) for name in ("code", "message", "hint"))
