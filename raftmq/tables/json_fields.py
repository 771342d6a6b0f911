"""Turns the fields of JSON bodies into typed columns: decides the kind of each field, which values fit it, and which
fields are new.

A new field gets the kind that most of its values have, and keeps it. A value of another kind does not fit, and the
row's error column says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from raftmq_wire.errors import ExitCode, LocalError

STRING, LONG, DOUBLE, BOOLEAN = "string", "long", "double", "boolean"
KINDS = (STRING, LONG, DOUBLE, BOOLEAN)
"""The kinds of fields, named as Delta's types. If several kinds are equally frequent in a field, it gets the first in
this order."""
FIELDS_MAX = 500
"""The most columns that are added automatically. If field names are data, such as users' ids, there must not be a
column for each."""
_NAME_MAX = 100
_TOLD_MAX = 5
"""The most fields that a row's error names."""
_UNFIT = re.compile(r"[^\w\-]")
Met = Mapping[str, Mapping[str, int]]
"""Field without a column -> kind -> the number of its values."""


class JsonField(NamedTuple):
    """A field of the bodies and its column."""

    name: str
    column: str
    kind: str


class Fields:
    """Reads the fields of bodies, and counts those without a column in `met`. To be used by one thread."""

    def __init__(self, known: Sequence[JsonField], *, grows: bool) -> None:
        """`grows`: True if unknown fields are to become columns, so that they are counted."""
        self._kinds = {field.name: field.kind for field in known}
        self._grows = grows and len(known) < FIELDS_MAX
        self._full = grows and not self._grows
        self.met: dict[str, dict[str, int]] = {}

    def read(self, body: bytes) -> tuple[Mapping[str, object], str]:
        """Returns the values of the body that fit their columns, and the reason why others do not; "" if all do."""
        try:
            found = msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return {}, f"not JSON: {error}"
        if not isinstance(found, dict):
            return {}, f"the body is {_said(found)}, not an object"
        values: dict[str, object] = {}
        wrong: list[str] = []
        for name, value in found.items():
            if value is None:
                continue
            kind = self._kinds.get(name)
            if kind is None:
                self._note(name, value, wrong)
            elif (fitting := _fitting(value, kind)) is not None:
                values[name] = fitting
            else:
                wrong.append(f"{name[:_NAME_MAX]}: {_said(value)}, and the column is {kind}")
        more = f"; {len(wrong) - _TOLD_MAX} more" if len(wrong) > _TOLD_MAX else ""
        return values, "; ".join(wrong[:_TOLD_MAX]) + more

    def _note(self, name: str, value: object, wrong: list[str]) -> None:
        if self._grows:
            kinds = self.met.setdefault(name, {})
            kind = _kind_of(value)
            kinds[kind] = kinds.get(kind, 0) + 1
        elif self._full:
            wrong.append(f"{name[:_NAME_MAX]}: the table has {FIELDS_MAX} columns of fields")


def merge(all_met: Sequence[Met]) -> Met:
    """Returns the sum of the counts of fields that several readers found in bodies."""
    found: dict[str, dict[str, int]] = {}
    for met in all_met:
        for name, kinds in met.items():
            into = found.setdefault(name, {})
            for kind, count in kinds.items():
                into[kind] = into.get(kind, 0) + count
    return found


def new_fields(met: Met, known: Sequence[JsonField], reserved: Sequence[str]) -> list[JsonField]:
    """Returns the fields of `met` that get a column, the most frequent first. At most FIELDS_MAX fields get columns,
    those in `known` included. `reserved`: names that columns of fields cannot have."""
    by_count = sorted(met, key=lambda name: (-sum(met[name].values()), name))
    taken = {name.casefold() for name in (*reserved, *(field.column for field in known))}
    found = []
    for name in by_count[: FIELDS_MAX - len(known)]:
        column = column_name(name, taken)
        taken.add(column.casefold())
        found.append(JsonField(name, column, _most_frequent(met[name])))
    return found


def column_name(name: str, taken: set[str]) -> str:
    """Returns a name for the column of a field that every reader accepts, and that is not in `taken`. `taken` has names
    in lower case, because Spark ignores the case of names."""
    base = _UNFIT.sub("_", name)[:_NAME_MAX] or "_"
    if base.casefold() in taken:
        base = f"body_{base}"
    column, number = base, 2
    while column.casefold() in taken:
        column, number = f"{base}_{number}", number + 1
    return column


def _most_frequent(kinds: Mapping[str, int]) -> str:
    counts = dict(kinds)
    if DOUBLE in counts:  # whole numbers fit into a column of doubles, but not the reverse
        counts[DOUBLE] += counts.pop(LONG, 0)
    return max(KINDS, key=lambda kind: counts.get(kind, 0))


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return LONG if -(1 << 63) <= value < 1 << 63 else DOUBLE
    return DOUBLE if isinstance(value, float) else STRING


def _fitting(value: Any, kind: str) -> object | None:
    """Returns the value as the column stores it, without any loss; None if it does not fit."""
    found = _kind_of(value)
    if kind == STRING and found == STRING:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if kind == LONG and found == DOUBLE and isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if kind == DOUBLE and found in (LONG, DOUBLE):
        return float(value) if abs(value) <= 1 << 53 or isinstance(value, float) else None
    return value if found == kind else None


def _said(value: object) -> str:
    """Returns the JSON type of a value, in words."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def read_schema(file: Path) -> dict[str, str]:
    """Reads a file of --schema, a JSON object of field -> kind. Raises LocalError."""
    example = '{"price": "double", "paid": "boolean"}'
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LocalError(f"{file} cannot be read", str(error), f"echo '{example}' >{file}", ExitCode.USAGE) from None
    if not isinstance(told, dict) or not told or not all(kind in KINDS for kind in told.values()):
        raise LocalError(
            f"{file} is no schema of JSON bodies",
            f"it must be a JSON object of fields, each with one of {', '.join(KINDS)}",
            f"echo '{example}' >{file}",
            ExitCode.USAGE,
        )
    return told
