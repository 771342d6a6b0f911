"""Encodes and decodes the messages between registry processes: those of pysyncobj, in msgpack, with known fields. Does
no I/O.

pysyncobj itself unpickles bytes from the network, which can run any code. This module accepts only a map of a known
message type with fields of known types.
"""

from __future__ import annotations

import msgpack

from cluster.runtime.peer_frames import WireError

MESSAGE_BYTES_MAX = 8 << 20
_NUMBER_MAX = 1 << 62
_DEPTH_ITEMS_MAX = 100_000

Message = dict[str, object]

_NUMBER, _BOOL, _BYTES, _ANY = "number", "bool", "bytes", "any"
_SHAPES: dict[str, dict[str, str]] = {
    "request_vote": {"term": _NUMBER, "last_log_index": _NUMBER, "last_log_term": _NUMBER},
    "response_vote": {"term": _NUMBER},
    "timeout_now": {"term": _NUMBER},
    "append_entries": {"term": _NUMBER, "commit_index": _NUMBER},
    "next_node_idx": {"next_node_idx": _NUMBER, "reset": _BOOL, "success": _BOOL, "term": _NUMBER},
    "apply_command": {"command": _BYTES, "request_id": _NUMBER},
    "apply_command_response": {"request_id": _NUMBER},
}
_MORE: dict[str, dict[str, str]] = {
    "append_entries": {"entries": _ANY, "prevLogIdx": _NUMBER, "prevLogTerm": _NUMBER, "serialized": _ANY},
    "apply_command_response": {"error": _NUMBER, "log_idx": _NUMBER, "log_term": _NUMBER},
}
"""Type of a message -> its optional fields and their types."""


def encode(value: object) -> bytes:
    """Encodes a message, or the keys and addresses that pysyncobj exchanges before the first message."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def decode(data: bytes) -> object:
    """Returns the value in these bytes. Raises WireError if they are malformed."""
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=_DEPTH_ITEMS_MAX,
            max_map_len=64,
            max_ext_len=0,
        )
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed: {error!s:.200}") from error


def message(value: object) -> Message:
    """Returns the message that a peer sent, with its entries as lists of [command, index, term]. Raises WireError if no
    registry process sends such a message."""
    if not isinstance(value, dict):
        raise WireError("no message")
    kind = value.get("type")
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise WireError(f"a message of an unknown type, {kind!r:.40}")
    fields = {**shape, **{name: what for name, what in _MORE.get(str(kind), {}).items() if name in value}}
    for name, what in fields.items():
        if not _is(value.get(name), what):
            raise WireError(f"{kind}: {name} is {value.get(name)!r:.40}")
    if unknown := value.keys() - fields.keys() - {"type"}:
        raise WireError(f"{kind} with {sorted(unknown)!r:.80}")
    _check(str(kind), value)
    return value


def _is(value: object, what: str) -> bool:
    if what == _NUMBER:
        return type(value) is int and 0 <= value < _NUMBER_MAX
    if what == _BOOL:
        return type(value) is bool
    return what == _ANY or (type(value) is bytes and len(value) > 0)


def _check(kind: str, value: Message) -> None:
    if kind == "apply_command_response" and "error" not in value and not {"log_idx", "log_term"} <= value.keys():
        raise WireError("an answer without a place")
    if kind != "append_entries":
        return
    if "serialized" in value:
        match value["serialized"]:
            case None | [bytes(), bool(), bool()]:
                return
        raise WireError("no part of a snapshot")
    if not {"entries", "prevLogIdx", "prevLogTerm"} <= value.keys() or not isinstance(value["entries"], list):
        raise WireError("entries without a place")
    before, term = value["prevLogIdx"], value["prevLogTerm"]
    for entry in value["entries"]:
        match entry:
            case [bytes() as command, int() as index, int() as own] if command and index == before + 1 and own >= term:  # type: ignore[operator]
                before, term = index, own
            case _:
                raise WireError("entries that do not follow each other")
