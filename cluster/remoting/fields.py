"""Reading a request's ext fields, and the answers that every handler gives alike."""

from __future__ import annotations

import functools
from collections.abc import Callable

from cluster.remoting.services import Handler, Request, Services
from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.request_limits import GROUP_LENGTH_MAX, INT64_MAX, NUMBER_DIGITS_MAX, TEXT_MAX
from cluster.wire.codes import UNKNOWN_REMARK, RequestCode, ResponseCode
from statemachine.commands import NAME

RETRY_PREFIX = "%RETRY%"


class Refusal(Exception):
    """Ends a handler with a code and a remark; nothing was changed."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


def refusing(handler: Handler) -> Handler:
    """The handler, answering with code and remark where it raises Refusal."""

    @functools.wraps(handler)
    def answered(request: Request) -> None:
        try:
            handler(request)
        except Refusal as refusal:
            request.reply(refusal.code, refusal.remark)

    return answered


def text(request: Request, name: str) -> str:
    """A field that must be there, not be empty and not be longer than any name is. Raises Refusal (29)."""
    value = request.ext.get(name)
    if not value:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"request {code_name(request.code)} needs field {name}")
    if len(value) > TEXT_MAX:
        remark = f"field {name} has {len(value)} characters, {TEXT_MAX} are allowed"
        raise Refusal(ResponseCode.INVALID_PARAMETER, remark)
    return value


def integer(request: Request, name: str, default: int | None = None) -> int:
    """A whole number of 64 bits; `default` if absent, and if there is none the field must be there. Raises Refusal."""
    value = request.ext.get(name)
    if not value and default is not None:
        return default
    try:
        number = int(value or "") if len(value or "") <= NUMBER_DIGITS_MAX else None
    except ValueError:
        remark = f"request {code_name(request.code)} needs field {name} as a whole number, not {value!r}"
        raise Refusal(ResponseCode.INVALID_PARAMETER, remark) from None
    if number is None or not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"field {name} does not fit 64 bits")
    return number


def code_name(code: int) -> str:
    """A request code for people."""
    try:
        return f"{code} {RequestCode(code).name}"
    except ValueError:
        return str(code)


def check_topic_name(name: str, length_max: int) -> None:
    """Raises Refusal (29) unless the name is one RocketMQ allows."""
    if not NAME.fullmatch(name):
        raise Refusal(
            ResponseCode.INVALID_PARAMETER, f'topic "{name[:80]}" may hold only letters, digits and the signs % | _ -'
        )
    if len(name) > length_max:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"topic name has {len(name)} characters, limits.topic_length_max is {length_max}",
        )


def check_group_name(name: str) -> None:
    """Raises Refusal (29) unless the name is one RocketMQ allows."""
    if not NAME.fullmatch(name) or len(name) > GROUP_LENGTH_MAX:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f'group "{name[:80]}" must have 1 to {GROUP_LENGTH_MAX} letters, digits and the signs % | _ -',
        )


def no_topic(topic: str) -> Refusal:
    """The answer for a topic that does not exist."""
    return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist")


def reply_written(request: Request, result: ProposeResult, ext: dict[str, str] | None = None) -> None:
    """Answers a write: ok 0, fail 14 (nothing was proposed) or 29 (no entry can hold it), unknown 1 with the remark
    that says so."""
    if result.outcome is Outcome.OK:
        request.reply(ResponseCode.SUCCESS, None, ext)
    elif result.unacceptable:
        request.reply(ResponseCode.INVALID_PARAMETER, result.remark)
    elif result.outcome is Outcome.FAIL:
        request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, result.remark or "not written: no leader took it")
    else:
        request.reply(ResponseCode.SYSTEM_ERROR, f"{UNKNOWN_REMARK} {result.remark or 'proposed and undecided'}")


def after_read_index(services: Services, request: Request, answer: Callable[[Request], None]) -> None:
    """Runs `answer` once applied state is linearizable; 14 if no leader confirms that."""
    answered = refusing(answer)

    def confirmed(ok: bool) -> None:
        if ok:
            answered(request)
        else:
            request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "no leader confirmed the read; try again")

    services.read_index(confirmed)
