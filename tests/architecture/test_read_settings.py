"""Whatever can be stored is read: every configuration key, and every field of a body that a request brings, is the name
of an attribute that some module below takes.

That a field is read does not show that it is obeyed: tests/cluster/sim/test_sim_settings.py plays every setting of
topics and groups. This is the check of those that are too many to play.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from cluster.admin.routes import ROUTES
from cluster.config.config import Config
from cluster.remoting import handlers
from tests.support.tree import nodes, python_files, text_of

ROOT = Path(__file__).parents[2]
READERS = ("cluster", "raftlog", "raftmq", "statemachine")
WHOLE = {
    "PullFields": "is no setting, and names fields of other brokers' concern so that they are passed over",
    "ConfigValues": "has the keys of the configuration, which are tried as such",
    "GroupData": "becomes a put_group command with all its fields (asdict)",
    "TopicRecord": "becomes a create_topic command with all its fields (to_builtins)",
    "GroupRecord": "becomes a put_group command with all its fields (to_builtins)",
}
"""Types that are stored as a whole, so that nobody reads their fields one by one."""


CHECKS = ("cross_key_rules.py", "ranges.py", "explain.py", "cluster_keys.py", "key_facts.py")
"""Modules of the configuration that check or show keys and obey none but these."""
OBEYED_THERE = {"LimitsSection.profile": "chooses the limits that the file does not name"}


@cache
def attributes_read() -> frozenset[str]:
    """Names that are read as attributes, but not where values are only compared with each other. Texts count as well,
    since some handlers loop over the names of fields."""
    found: set[str] = set()
    for package in READERS:
        for path in python_files(package):
            if path.name in CHECKS:
                continue
            for node in nodes(text_of(path)):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                    found.add(node.value)
    return frozenset(found)


def structs_in(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """Yields the structs that a type consists of."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for each in getattr(hint, "__args__", ()):
        yield from structs_in(each)


def hints_of(one: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the types of the fields; of a struct that no request brings, such as one with a callback, only names."""
    try:
        return get_type_hints(one, include_extras=True)
    except NameError:
        return dict.fromkeys(one.__struct_fields__)


def unread(roots: Iterable[type[msgspec.Struct]]) -> list[str]:
    """Returns `Type.field` for each field, also of the structs below, that nobody reads."""
    left, known, found = list(roots), set[type[msgspec.Struct]](), []
    while left:
        one = left.pop()
        if one in known:
            continue
        known.add(one)
        for name, hint in hints_of(one).items():
            left += structs_in(hint)
            if name in one.__struct_fields__ and one.__name__ not in WHOLE and name not in attributes_read():
                found.append(f"{one.__name__}.{name}")
    return sorted(found)


def bodies() -> list[type[msgspec.Struct]]:
    """Every body of the HTTP API, and every struct that a handler of remoting decodes."""
    found = [route.body for route in ROUTES if route.body is not None]
    for path in sorted(Path(handlers.__file__).parent.glob("*.py")):
        module = __import__(f"{handlers.__name__}.{path.stem}", fromlist=["*"])
        found += [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    return [each for each in found if isinstance(each, type) and issubclass(each, msgspec.Struct)]


def test_every_configuration_key_is_read() -> None:
    assert unread([Config]) == list(OBEYED_THERE)


def test_every_field_of_a_body_is_read() -> None:
    assert len(bodies()) > 30
    assert unread(bodies()) == []


@pytest.mark.parametrize("root", [Config, *bodies()[:1]])
def test_a_planted_field_is_found(root: type[msgspec.Struct]) -> None:
    planted = msgspec.defstruct("Planted", [("planted_and_never_read", int, 0)], bases=(root,), kw_only=True)
    assert set(unread([planted])) - OBEYED_THERE.keys() == {"Planted.planted_and_never_read"}
