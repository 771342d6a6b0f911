"""Only `raftmq_wire.properties` looks for something in the properties of a message.

A reader of its own takes the first entry of a name, or an empty one, sooner or later. Whether two bytes are in the
properties at all may be asked anywhere: that decides nothing, it saves a search.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.rows import each_row
from tests.support.tree import PACKAGES, ROOT, nodes, sources

THE_PARSER = "raftmq_wire/properties.py"
SEARCHES = {
    *("find", "rfind", "index", "rindex", "split", "rsplit", "partition", "rpartition", "startswith", "removeprefix"),
    *("compile", "search", "match", "fullmatch", "findall", "finditer"),
}
SEPARATORS = {"\x01", "\x02"}


def searches(source: str) -> Iterator[int]:
    """Yields the lines that search in something called properties, or for one of the two separators."""
    for node in nodes(source):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in SEARCHES:
            continue
        of = node.func.value
        name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
        if name == "properties" or any(_has_separator(each) for given in node.args for each in ast.walk(given)):
            yield node.lineno


def _has_separator(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""
    return bool(SEPARATORS & set(text)) or any(rf"\x0{digit}" in text for digit in "12")


def test_properties_are_searched_in_one_place() -> None:
    found = {f"{name}:{line}" for name, text in sources(*PACKAGES) for line in searches(text)}
    assert {each for each in found if not each.startswith(f"{THE_PARSER}:")} == set()
    assert found, "the parser itself"


@each_row(
    "planted",
    [
        'at = properties.find(b"KEYS\\x01")',
        "at = message.properties.find(MARK)",
        'tag = asked.split("\\x02")',
        'DELAY = re.compile(r"(?:^|\\x02)DELAY\\x01(\\d+)")',
        'is_it = part.startswith(("a", "DELAY\\x01"))',
    ],
)
def test_a_parser_of_its_own_is_noticed(planted: str) -> None:
    assert list(searches(f"import re\n{planted}\n")) == [2]


def test_a_look_that_saves_a_search_is_none() -> None:
    assert not list(searches('if b"KEYS\\x01" in properties and not properties.endswith("\\x02"):\n    pass\n'))
    assert Path(ROOT, THE_PARSER).exists()
