"""Errors of the HTTP API: {"error": {"code", "message", "hint"}}, and the status of each."""

from __future__ import annotations

from typing import Final

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    """One error. `code` is for programs and never changes; `message` states the problem, `hint` the remedy."""

    code: str
    message: str
    hint: str


class ErrorView(msgspec.Struct, frozen=True):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


STATUS: Final = {
    "bad_request": 400,
    "bad_json": 400,
    "bad_field": 400,
    "bad_query": 400,
    "bad_command": 400,
    "token_in_address": 400,
    "bad_pass": 400,
    "unauthenticated": 401,
    "denied": 403,
    "cross_origin": 403,
    "foreign_host": 403,
    "path_not_allowed": 403,
    "not_found": 404,
    "failpoints_off": 404,
    "bad_method": 405,
    "exists": 409,
    "refused": 409,
    "unconfirmed": 409,
    "too_large": 413,
    "not_json": 415,
    "over_quota": 429,
    "internal": 500,
    "busy": 503,
    "cannot_judge": 503,
    "no_leader": 503,
    "not_leader": 503,
    "leader_unreachable": 503,
    "unreachable": 503,
    "failed": 503,
    "unknown_outcome": 504,
}
"""Error code -> HTTP status. All codes except `unknown_outcome` (and a broken connection) mean that nothing was
changed."""


class ApiError(Exception):
    """An error of a handler, from which the server makes an ErrorView."""

    def __init__(self, code: str, message: str, hint: str, *, again_ms: int = 0) -> None:
        """`again_ms`: the time after which the same request may succeed, if that is known."""
        super().__init__(f"{message} ({hint})")
        self.again_ms = again_ms
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    @property
    def view(self) -> ErrorView:
        """The body of the answer."""
        return ErrorView(ErrorDetail(self.code, self.message, self.hint))


class HandedOver(ApiError):
    """Leadership moved to another node before anything was changed: the request is forwarded to that node."""

    def __init__(self, leader: str) -> None:
        """`leader`: "node 2", "node 3/2"."""
        super().__init__("not_leader", f"{leader} leads now", "ask again; nothing was changed")


def unknown_outcome(message: str) -> ApiError:
    """Makes the error for a change that was proposed and whose outcome cannot be known."""
    return ApiError("unknown_outcome", message, "read it back before you try again: it may have happened")
