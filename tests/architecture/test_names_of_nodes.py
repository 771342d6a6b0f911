"""Texts for people name a node of a further group of brokers by its group: "node 2/3" (`node_object`, `name_of`). An id
alone is that of a node in each group, so log lines, findings, refusals and errors must not print one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.rows import each_row
from tests.support.tree import nodes, sources

IDS = {"node", "peer", "node_id", "to_id", "to", "from_id", "id", "peer_id", "leader", "voter"}
"""Names of variables and attributes that hold a bare id."""
MAY = {
    "cluster/admin/forward.py: node": "a NodeName",
    "cluster/admin/signed_identity.py: self._node": "a NodeName",
    "cluster/members/voter_claims.py: node": "a node of the cluster that is being made on this machine",
    "cluster/peer/allowed_peers.py: to_id": "what a stranger says, of any type",
    "cluster/peer/allowed_peers.py: node_id": "what a stranger says, of any type",
    "cluster/peer/group_links.py: node": "what a stranger says, of any type; the group follows",
    "cluster/peer/reachability.py: node": "the default of tests",
    "cluster/retention/views.py: leader": "a NodeName",
    "cluster/retention/views.py: node": "a NodeName",
    "cluster/runtime/logs.py: self._node": "a NodeName",
}


def bare_ids(name: str, text: str) -> Iterator[str]:
    """Yields "file: expression" of each id that follows the word node in an f-string, and each `node %d`. Nodes of the
    registry belong to no group."""
    for found in nodes(text):
        if isinstance(found, ast.Constant) and type(found.value) is str and re.search(r"\bnodes? %d", found.value):
            yield f"{name}: {found.value}"
        if not isinstance(found, ast.JoinedStr):
            continue
        for before, part in zip(found.values, found.values[1:], strict=False):
            is_node = isinstance(before, ast.Constant) and re.search(r"(?<!registry )\bnodes? $", str(before.value))
            if is_node and isinstance(part, ast.FormattedValue) and _last_name(part.value).lstrip("_") in IDS:
                yield f"{name}: {ast.unparse(part.value)}"


def _last_name(expression: ast.expr) -> str:
    return getattr(expression, "attr", getattr(expression, "id", ""))


def test_no_text_names_a_node_by_its_id_alone() -> None:
    found = [each for name, text in sources("cluster") for each in bare_ids(name, text)]
    assert sorted({*found} - MAY.keys()) == []
    assert sorted(MAY.keys() - {*found}) == [], "take it out of MAY"


@each_row(
    ("code", "bare"),
    [
        ('f"node {peer} is silent"', True),
        ('f"of nodes {self._peer.node_id}"', True),
        ('log("node %d leads", to)', True),
        ('f"{node_object(group, peer)} is silent"', False),
        ('f"node {name_of(group, peer)} is silent"', False),
        ('f"node {name} and entry {index}"', False),
        ('f"registry node {node} is silent"', False),
    ],
)
def test_a_bare_id_is_found(code: str, *, bare: bool) -> None:
    assert bool([*bare_ids("x", code)]) is bare
