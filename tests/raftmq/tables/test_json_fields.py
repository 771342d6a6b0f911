"""Fields of JSON bodies: which kind they get, what fits, and what a row says that does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raftmq.tables import json_fields
from raftmq.tables.json_fields import FIELDS_MAX, Fields, JsonField, column_name, merge, new_fields, read_schema
from raftmq.tables.table_rows import RESERVED
from raftmq_wire.errors import LocalError

KNOWN = [JsonField(kind, kind, kind) for kind in json_fields.KINDS]


@pytest.mark.parametrize(
    ("body", "values", "error"),
    [
        (b'{"long": 7, "double": 7, "boolean": true, "string": "x"}', (7, 7.0, True, "x"), ""),
        (b'{"long": null, "other": 1}', (None, None, None, None), ""),
        (b'{"long": 7.0, "double": 0.5}', (7, 0.5, None, None), ""),
        (b'{"string": {"a": [1]}, "long": -9223372036854775808}', (-(1 << 63), None, None, '{"a":[1]}'), ""),
        (b'{"long": 7.5, "double": 1}', (None, 1.0, None, None), "long: a number, and the column is long"),
        (b'{"long": 9223372036854775808}', (None,) * 4, "long: a number, and the column is long"),
        (b'{"long": 1e300}', (None,) * 4, "long: a number, and the column is long"),
        (b'{"double": 9007199254740993}', (None,) * 4, "double: a number, and the column is double"),
        (b'{"long": true, "boolean": 1}', (None,) * 4, "long: a boolean, and the column is long; boolean: a number"),
        (b'{"string": 7}', (None,) * 4, "string: a number, and the column is string"),
        (b'{"double": "7"}', (None,) * 4, "double: a string, and the column is double"),
        (b"[1]", (None,) * 4, "the body is a list, not an object"),
        (b"null", (None,) * 4, "the body is null, not an object"),
        (b"", (None,) * 4, "not JSON"),
        (b"\xff\xfe", (None,) * 4, "not JSON"),
        (b'{"long": NaN}', (None,) * 4, "not JSON"),
        (b'{"long": 1e999}', (None,) * 4, "not JSON"),
        (b'{"string": "\\ud800"}', (None,) * 4, "not JSON"),
        (b'{"string": "\xff"}', (None,) * 4, "not JSON"),
        (b"[" * 100_000, (None,) * 4, "not JSON"),
    ],
)
def test_what_fits_a_column(body: bytes, values: tuple[object, ...], error: str) -> None:
    found, told = Fields(KNOWN, grows=False).read(body)
    assert tuple(found.get(kind) for kind in ("long", "double", "boolean", "string")) == values
    assert {type(value) for value in found.values()} == {type(value) for value in values if value is not None}
    assert told.startswith(error)
    assert bool(told) is bool(error)


def test_a_row_with_many_errors_names_some() -> None:
    known = [JsonField(f"f{n}", f"f{n}", "long") for n in range(9)]
    _, told = Fields(known, grows=False).read(b"{%s}" % b",".join(b'"f%d": ""' % n for n in range(9)))
    assert told.count("a string") == 5
    assert told.endswith("; 4 more")


def met(*bodies: bytes) -> list[JsonField]:
    fields = Fields([], grows=True)
    for body in bodies:
        assert fields.read(body)[1] == ""
    return new_fields(merge([fields.met, {}]), [], RESERVED)


def test_a_new_field_gets_the_kind_of_most_of_its_values() -> None:
    assert met(b'{"a": 1}', b'{"a": 2}', b'{"a": "x"}', b'{"b": null}') == [("a", "a", "long")]
    assert met(b'{"a": 1}', b'{"a": 2.5}', b'{"a": "x"}') == [("a", "a", "double")]
    assert met(b'{"a": true}', b'{"a": [1]}') == [("a", "a", "string")]
    assert met(b'{"a": 9223372036854775808}') == [("a", "a", "double")]


def test_columns_have_names_that_every_reader_takes() -> None:
    found = met(b'{"a b": 1, "A_B": 1, "a.b": 1, "Topic": 1, "_error": 1, "": 1, "\xc3\xa4": 1, "user-id": 1}')
    assert [(name, column) for name, column, _ in found] == [
        ("", "_"),
        ("A_B", "A_B"),
        ("Topic", "body_Topic"),
        ("_error", "body__error"),
        ("a b", "body_a_b"),
        ("a.b", "body_a_b_2"),
        ("user-id", "user-id"),
        ("\xe4", "\xe4"),
    ]
    assert len(column_name("x" * 1000, set())) == 100


def test_names_that_are_data_do_not_become_a_column_each() -> None:
    names = [f"n{number:03}" for number in range(FIELDS_MAX + 1)]
    found = met(json.dumps(dict.fromkeys(names, 1)).encode(), json.dumps(dict.fromkeys(names[1:], 1)).encode())
    assert [name for name, _, _ in found] == names[1:]
    full = Fields(found, grows=True)
    assert full.read(b'{"n000": 1, "n001": 1}') == ({"n001": 1}, f"n000: the table has {FIELDS_MAX} columns of fields")
    assert full.met == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": "int"}', '{"a": 1}', "\0"])
def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "schema.json"
    with pytest.raises(LocalError):
        read_schema(file)
    file.write_text(text)
    with pytest.raises(LocalError):
        read_schema(file)
    file.write_text('{"price": "double"}')
    assert read_schema(file) == {"price": "double"}
