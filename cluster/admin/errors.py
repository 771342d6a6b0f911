"""Defines the errors of the HTTP API. Their JSON body is {"error": {"code", "message", "hint"}}; STATUS has the HTTP
status of each code."""

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
"""Error code -> HTTP status. Every code except `unknown_outcome` and `internal` means that nothing was changed. A
request of which a part was done is answered with `unknown_outcome` too. A broken connection leaves it open as well."""


class ApiError(Exception):
    """An error that a handler raises. The server sends it to the client as an ErrorView."""

    def __init__(self, code: str, message: str, hint: str, *, again_ms: int = 0) -> None:
        """Makes an error. `again_ms` is the number of milliseconds after which the same request may succeed; 0 if it is
        not known."""
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
    """Raised when leadership moved to another node before anything was changed. The server then forwards the request to
    that node."""

    def __init__(self, leader: str) -> None:
        """Makes the error. `leader` is the name of the new leader, such as "node 2" or, in group 3, "node 3/2"."""
        super().__init__("not_leader", f"{leader} leads now", "ask again; nothing was changed")


def done_in_part(why: str, fix: str) -> ApiError:
    """Returns the error for a request of whose several changes some were made. `why` says why the others were not, and
    `fix` what to do about it."""
    return ApiError("unknown_outcome", f"a part of it was done: {why}", fix)


def unknown_outcome(message: str) -> ApiError:
    """Returns the error for a change that was proposed, and that may or may not have happened. `message` says why."""
    return ApiError("unknown_outcome", message, "read it back before you try again: it may have happened")
