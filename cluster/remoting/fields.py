"""Reading a request's ext fields."""

from __future__ import annotations

from cluster.broker.refusal import Reason, Refused
from cluster.remoting.request import Request
from cluster.runtime.request_limits import INT64_MAX, NUMBER_DIGITS_MAX, TEXT_MAX
from cluster.wire.codes import RequestCode

_DIGITS_OF_64_BITS = 18
"""A number of no more characters fits 64 bits."""


def text(request: Request, name: str) -> str:
    """A field that must be there, not be empty and not be longer than any name is. Raises Refused (29)."""
    value = request.ext.get(name)
    if not value:
        raise Refused(Reason.INVALID, f"request {code_name(request.code)} needs field {name}")
    if len(value) > TEXT_MAX:
        remark = f"field {name} has {len(value)} characters, {TEXT_MAX} are allowed"
        raise Refused(Reason.INVALID, remark)
    return value


def integer(request: Request, name: str, default: int | None = None) -> int:
    """A whole number of 64 bits; `default` if absent, and if there is none the field must be there. Raises Refused."""
    value = request.ext.get(name)
    if not value and default is not None:
        return default
    try:
        number = int(value or "") if len(value or "") <= NUMBER_DIGITS_MAX else None
    except ValueError:
        remark = f"request {code_name(request.code)} needs field {name} as an integer, not {value!r}"
        raise Refused(Reason.INVALID, remark) from None
    if number is None or not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise Refused(Reason.INVALID, f"field {name} does not fit 64 bits")
    return number


def integers(request: Request, *names: str) -> list[int]:
    """Several that must be there."""
    try:
        texts = [request.ext[name] for name in names]
        numbers = list(map(int, texts))
    except (KeyError, ValueError):
        pass
    else:
        if max(map(len, texts)) <= _DIGITS_OF_64_BITS:
            return numbers
    return [integer(request, name) for name in names]


def integer_in(request: Request, name: str, low: int, high: int, default: int | None = None) -> int:
    """The same, in low..high. Raises Refused (29)."""
    number = integer(request, name, default)
    if not low <= number <= high:
        raise Refused(Reason.INVALID, f"field {name} is {number}; allowed are {low} to {high}")
    return number


def code_name(code: int) -> str:
    """A request code for people."""
    try:
        return f"{code} {RequestCode(code).name}"
    except ValueError:
        return str(code)
