"""Only `take` and `give_back` of `cluster.runtime.in_flight.BytesInFlight` change the bytes in flight, in the kernel
too: each line that changed such a figure by hand was a place that could forget to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWNER = "cluster/runtime/in_flight.py"
KERNEL = "raftmq_wire/kernel/_native.pyx"
METHODS = ("__init__", "take", "give_back")
NAMES = ("in_flight", "inflight_bytes", "bytes_inflight", "bytes_held")
"""Attributes that would hold one, or have held one."""
OTHERS = {
    "cluster/replication/message_batch.py cursor.bytes": "bytes of a queue in the entry that is built",
    "cluster/replication/proposals.py entry.bytes": "what the sends of one entry will give back",
    "cluster/replication/proposals.py pending.bytes": "the same",
    "cluster/replication/proposals.py queue.bytes": "bytes that wait for an entry",
}
"""Other attributes of that name, which their classes' neighbours change."""


def changes(text: str) -> Iterator[tuple[str, str, int]]:
    """(function, target, line) of each assignment that changes a figure: `x.bytes`, or an attribute that is called
    bytes in flight."""
    for function, node in _nodes(ast.parse(text), ""):
        for target in _targets(node):
            if not isinstance(target, ast.Attribute):
                continue
            receiver = ast.unparse(target.value)
            made = receiver == "self" and function == "__init__"
            named = target.attr in NAMES and not (made and target.attr == "in_flight")
            if named or (target.attr == "bytes" and receiver != "self"):
                yield function, f"{receiver}.{target.attr}", node.lineno


def _nodes(tree: ast.AST, function: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.stmt):
            yield inside, node
        yield from _nodes(node, inside)


def _targets(node: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target


def kernel_changes(text: str) -> list[str]:
    """Lines of the kernel that change a figure outside the class."""
    before, _, rest = text.partition("cdef class BytesInFlight")
    outside = before + rest[rest.index("\n@cython.final") :]
    return re.findall(r".*(?:inflight\w*|\b(?!self\b|cursor\b)\w+\.bytes)\s*[-+]?=[^=].*", outside)


def test_only_the_owner_changes_the_bytes_in_flight() -> None:
    found = {
        f"{file.relative_to(ROOT)} {target}": line
        for package in ("cluster", "raftmq_wire", "jepsen_like")
        for file in sorted((ROOT / package).rglob("*.py"))
        for _, target, line in changes(file.read_text())
    }
    left = {name: line for name, line in found.items() if name not in OTHERS}
    assert left == {}, "call take or give_back of its BytesInFlight"
    assert set(found) == set(OTHERS), "this is gone: take it off the list"


def test_the_owner_changes_them_in_its_methods() -> None:
    tree = ast.parse((ROOT / OWNER).read_text())
    changing = {
        function
        for function, node in _nodes(tree, "")
        for target in _targets(node)
        if isinstance(target, ast.Attribute) and target.attr == "bytes"
    }
    assert changing == set(METHODS)


def test_the_kernel_changes_them_through_their_owner() -> None:
    assert kernel_changes((ROOT / KERNEL).read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(path): path.in_flight.bytes -= 1", ["path.in_flight.bytes"]),
        ("def f(sends): sends.bytes = 0", ["sends.bytes"]),
        ("def f(path): path.inflight_bytes += 1", ["path.inflight_bytes"]),
        ("def f(node): node.bytes_inflight, a = 1, 2", ["node.bytes_inflight"]),
        ("def f(path): path.in_flight = None", ["path.in_flight"]),
        ("class A:\n    def f(self): self.in_flight = 1", ["self.in_flight"]),
        ("class A:\n    def __init__(self): self.in_flight = BytesInFlight()", []),
        ("def f(path): path.in_flight.take(1)", []),
    ],
)
def test_changes_by_hand_are_found(text: str, found: list[str]) -> None:
    assert [target for _, target, _ in changes(text)] == found


def test_changes_by_hand_are_found_in_the_kernel() -> None:
    owner = "cdef class BytesInFlight:\n    self.bytes += size\n\n@cython.final\ncdef class Next:\n"
    assert kernel_changes(owner) == []
    assert len(kernel_changes(owner + "    path.inflight_bytes = inflight + taken\n    sends.bytes -= held\n")) == 2
