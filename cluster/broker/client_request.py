"""A request from the broker to a client, and the client's answer, as values of whatever protocol the client speaks."""

from __future__ import annotations

from typing import NamedTuple


class ClientRequest(NamedTuple):
    """What a client is to be sent. The broker hands it on; its front has filled it in."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    oneway: bool = False
    """No answer is wanted: the request is done when it was written to a connection."""


class ClientAnswer(NamedTuple):
    """What the client answered: code 0 is success."""

    code: int
    remark: str = ""
    ext: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: bytes = b""


HANDED_OVER = ClientAnswer(0)
"""The answer to a oneway request that was written to a client's connection; it may still be lost with it."""
