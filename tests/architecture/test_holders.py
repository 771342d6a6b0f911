"""What is in flight is counted in one room: nothing outside `cluster.flow` makes a hold or changes an account."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.rows import each_row
from tests.support.tree import nodes, sources

ROOM = ("cluster/flow/", "tests/cluster/flow/")
TWINS = "tests/raftmq_wire/kernel/test_holds.py"
"""Compares the holds of both kernels."""
MAKERS = {"Hold", "Account", "Holder", "hold_each"}
"""What counts in an account, and what makes one. The gate has a method for each."""
SPEAKS_OF_THEM = re.compile(rf"\b({'|'.join(MAKERS)}|_count)\b")


def makers(text: str) -> Iterator[str]:
    """Yields line and name of each place that makes a hold or an account, or counts in one."""
    for node in nodes(text):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in MAKERS:
                yield f"{node.lineno}: {name}"
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in MAKERS:
                if not (name == "hold_each" and ast.unparse(owner).endswith("gate")):
                    yield f"{node.lineno}: {name}"
            case ast.ImportFrom(module="cluster.flow.hold", names=names):
                yield from (f"{node.lineno}: import {each.name}" for each in names if each.name == "hold_each")
            case ast.Attribute(value=owner, attr="_count") if ast.unparse(owner).endswith(("account", "in_flight")):
                yield f"{node.lineno}: _count"


def test_only_the_gate_makes_a_hold() -> None:
    found = [
        f"{name}:{made}"
        for name, text in sources("cluster", "raftmq", "jepsen_like", "pyspark_raftmq", "tests")
        if not name.startswith(ROOM) and name != TWINS and SPEAKS_OF_THEM.search(text)
        for made in makers(text)
    ]
    assert found == [], "ask cluster.flow.gate.Gate for it"


@each_row(
    ("text", "found"),
    [
        ("send.hold = Hold(path.in_flight.account, None, 1)", ["1: Hold"]),
        ("account = hold.Account()", ["1: Account"]),
        ("from cluster.flow.hold import hold_each", ["1: import hold_each"]),
        ("hold.hold_each(sends, one, two)", ["1: hold_each"]),
        ("path.in_flight.account._count(1, 1)", ["1: _count"]),
        ("self.gate.hold_each(holder, sends, 0)\nhold: Hold = NO_HOLD\nself._count(refused)", []),
    ],
)
def test_it_finds_who_does(text: str, found: list[str]) -> None:
    assert list(makers(text)) == found
