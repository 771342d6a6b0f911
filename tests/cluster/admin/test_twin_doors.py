"""Two doors to one thing have the same checks: the pairs are found in the table of routes."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import pytest

from cluster.admin.handlers.backup import TARGET
from cluster.admin.routes import ROUTES
from cluster.runtime.logs import JsonFormatter, TextFormatter
from tests.support.rows import each_row

NAUGHTY = ["\x1b[2J", "a\nb", "a\rb", "\x7f", "\x9b1m", "\u202eb", "\u2028", "\x00"]


def shared_fields() -> dict[tuple[str, str], dict[str, str]]:
    """(first word of the path, field of a body) -> route -> type without None, for fields of several routes."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for route in ROUTES:
        for each in msgspec.structs.fields(route.body) if route.body is not None else ():
            given = [part for part in get_args(each.type) if part is not type(None)]
            is_optional = type(None) in get_args(each.type)
            wanted = given[0] if is_optional and len(given) == 1 else each.type
            found[route.path.split("/")[2], each.name][f"{route.method} {route.path}"] = str(wanted)
    return {place: types for place, types in found.items() if len(types) > 1}


@each_row("place", sorted(shared_fields()))
def test_a_field_has_the_same_limits_at_every_door(place: tuple[str, str]) -> None:
    types = shared_fields()[place]
    assert len({text.replace("<class 'bool'>", "bool") for text in types.values()}) == 1, types


def test_there_are_pairs() -> None:
    assert {("users", "secret"), ("tokens", "label"), ("tokens", "user")} <= shared_fields().keys()


WRITTEN = {
    "plain": lambda place: place,
    "file": lambda place: f"file://{place}",
    "escaped": lambda place: f"file://{quote(place)}",
    "bucket": lambda place: f"s3://bucket{place}",
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("naughty", NAUGHTY)
async def test_a_backup_goes_to_no_place_with_a_control_character(
    make_node: Any, serve: Any, tmp_path: Path, caplog: Any, naughty: str, written: str
) -> None:
    node = make_node(1, backup__roots=f"{tmp_path};s3://bucket")
    begun: list[str] = []
    node.backups.begin = lambda to, **_: begun.append(to)
    client, to = await serve(node), WRITTEN[written](f"{tmp_path}/a{naughty}")
    for dry in (False, True):
        answer = await client.post("/v1/backup", json={"to": to, "dry_run": dry})
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_field")
        assert (await answer.text()).strip().isprintable()
    assert begun == []
    if written != "escaped" and naughty not in ("\u202eb", "\u2028"):
        assert not re.search(TARGET, to), "the document says so"
    assert (await client.post("/v1/backup", json={"to": WRITTEN[written](f"{tmp_path}/a")})).status == 202


@pytest.mark.parametrize("form", [TextFormatter(1), JsonFormatter(1)], ids=["text", "json"])
async def test_no_door_lets_a_control_character_into_the_log(
    make_node: Any, serve: Any, tmp_path: Path, form: logging.Formatter
) -> None:
    """Each route that is no stream, with such text in its path, its query and its body."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(form.format(record))

    node = make_node(1, backup__roots=str(tmp_path))
    node.add_user("root", is_super=True)
    node.set_mode("observe")
    client, text = await serve(node), "".join(NAUGHTY)
    root, kept = logging.getLogger(), Kept()
    root.addHandler(kept)
    try:
        for route in ROUTES:
            if route.streams:
                continue
            path = re.sub(r"\{[^}]*\}", quote(text, safe=""), route.path)
            named = {each.name: text for each in (msgspec.structs.fields(route.body) if route.body is not None else ())}
            for body in ({}, named):
                query = dict.fromkeys(route.asks, text) if body else {}
                answer = await client.request(
                    route.method, path, params=query, json=body if route.body is not None else None
                )
                await answer.read()
        assert lines
        assert all(line.isprintable() for line in lines)
    finally:
        root.removeHandler(kept)
