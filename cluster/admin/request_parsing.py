"""Parses the bodies and queries of requests strictly. An error about an unknown word names the most similar known
one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from cluster.admin.errors import ApiError
from cluster.config.source import did_you_mean
from cluster.runtime.request_limits import INT64_MAX, NAME_PATTERN
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftlog.work import charge_text
from raftmq_wire.json_text import MALFORMED
from raftmq_wire.names import SIGNS

T = TypeVar("T", bound=msgspec.Struct)

BODY_BYTES_MAX: Final = 64 * 1024
NAME_SIGNS: Final = f"a name, which may hold only {SIGNS}"
CONSISTENCIES: Final[tuple[Literal["local", "linearizable"], ...]] = ("local", "linearizable")
SECRET_NAME: Final = re.compile("token|secret|passw|auth|bearer|api_?key", re.IGNORECASE)
"""Pattern of names of query parameters whose values may be secrets."""
FLAGS: Final = ("true", "false")
BROKER_GROUP: Final = "broker_group"
"""Name of the parameter with the number of the group of brokers that is to answer. Without it, the group of the node
that is asked answers."""
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$")


def decode_body(data: bytes, kind: type[T]) -> T:
    """Decodes a JSON text as `kind`. Raises ApiError if it is invalid, or has unknown fields."""
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    charge_text(len(data))
    try:
        raw = _whole(msgspec.json.decode(data))
    except MALFORMED as error:
        raise ApiError(
            "bad_json", f"the body is not JSON: {error}", f"send an object with {', '.join(known)}"
        ) from None
    if not isinstance(raw, dict):
        raise ApiError("bad_json", "the body is not a JSON object", f"send an object with {', '.join(known)}")
    for key in raw:
        if key not in known:
            raise ApiError("bad_field", f"unknown field {key}", did_you_mean(key, known))
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in raw:
            raise ApiError("bad_field", f"field {field.encode_name} is missing", "add it")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        what, where = _explain(str(error))
        raise ApiError("bad_field", f"field {where} is not valid: {what}", "correct it; nothing was changed") from None


def check_query(query: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raises ApiError for a parameter that the route does not know, or whose name says that its value is a secret."""
    for name in query:
        if SECRET_NAME.search(name):
            why = "addresses are logged by proxies and kept by browsers"
            fix = "send Authorization: Bearer TOKEN, and revoke a token that was in an address"
            raise ApiError("token_in_address", f"a token or secret in an address is refused: {why}", fix)
        if name not in known:
            hint = did_you_mean(name, known) if known else "remove it: this address takes no query"
            raise ApiError("bad_query", f"unknown query {name}", hint)


def consistency_of(query: Mapping[str, str]) -> Literal["local", "linearizable"]:
    """Returns the parameter ?consistency=; "local" without it. Raises ApiError for any other word than "local" and
    "linearizable"."""
    wanted = query.get("consistency", "local")
    for known in CONSISTENCIES:
        if wanted == known:
            return known
    raise ApiError("bad_query", f"consistency cannot be {wanted}", did_you_mean(wanted, CONSISTENCIES))


def flag_of(query: Mapping[str, str], name: str) -> bool:
    """Returns True for ?name=true; False for ?name=false or without it. Raises ApiError for another value."""
    wanted = query.get(name, "false")
    if wanted not in FLAGS:
        raise ApiError("bad_query", f"{name} cannot be {wanted}", did_you_mean(wanted, FLAGS))
    return wanted == "true"


def group_of(query: Mapping[str, str], own: int) -> int:
    """Returns the number of the group in ?broker_group=; `own` without it. Raises ApiError if it is invalid."""
    group = number_of(query, BROKER_GROUP, own, GROUPS_MAX)
    if not group:
        raise ApiError("bad_query", f"{BROKER_GROUP} cannot be 0", f"use a number from {FIRST_GROUP} to {GROUPS_MAX}")
    return group


def number_of(query: Mapping[str, str], name: str, default: int = 0, most: int = INT64_MAX) -> int:
    """Returns the parameter ?name= as a number from 0 to `most`; `default` without it. Raises ApiError if it is
    invalid."""
    wanted = query.get(name)
    if wanted is None:
        return default
    if not (wanted.isascii() and wanted.isdecimal() and len(wanted) < 20 and int(wanted) <= most):
        raise ApiError("bad_query", f"{name} cannot be {wanted[:64]}", f"use a whole number from 0 to {most}")
    return int(wanted)


def _whole(value: Any) -> Any:
    """Returns a decoded JSON value with floats such as 5.0 replaced by 5, also inside lists and dicts: JSON does not
    tell them apart."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is list:
        return [_whole(each) for each in value]
    return {key: _whole(each) for key, each in value.items()} if type(value) is dict else value


def _explain(text: str) -> tuple[str, str]:
    """Splits msgspec's error "Expected `int`, got `str` - at `$.queues`" into ("expected int, got str", "queues")."""
    match = _PLACE.match(text)
    what, where = (match["what"], match["where"]) if match else (text, None)
    what = what.replace(f"`str` matching regex {NAME_PATTERN!r}", NAME_SIGNS)
    return what[:1].lower() + what[1:].replace("`", ""), where or "(body)"
