"""[retention] may differ from node to node: that is said, and whose counts."""

from __future__ import annotations

from typing import Any

from cluster.config.local_layout import NodeRecord
from cluster.config.storage_sections import RetentionSection
from cluster.retention.views import differing, settings_of
from raftmq.commands.nodes.status import retention_lines
from raftmq.local.status import GroupStatus, NodeView

USUAL = settings_of(RetentionSection())


def test_equal_settings_are_no_news() -> None:
    assert set(USUAL) == set(RetentionSection.__struct_fields__)
    assert differing({1: USUAL, 2: USUAL, 3: dict(USUAL)}, 1) == []


def test_what_differs_is_named_with_whose_counts() -> None:
    nodes = {1: {**USUAL, "hours": 1}, 2: USUAL, 3: {**USUAL, "delete_when": "", "protect_unconsumed": True}}
    when, hours, protect = differing(nodes, 1)
    assert hours == (
        "retention.hours differs: 1 on node 1, 72 on node 2, 72 on node 3; node 1 leads: its 1 counts, for all nodes, "
        "until another node leads. Make them equal in every raftmq.toml, then raftmq reload"
    )
    assert when.startswith('retention.delete_when differs: "04" on node 1, "04" on node 2, "" on node 3; node 1 leads')
    assert "false on node 1, false on node 2, true on node 3" in protect
    assert differing(nodes, None)[1].endswith("; the next leader's counts, for all nodes")


def test_some_keys_are_each_nodes_own_and_older_nodes_do_not_tell() -> None:
    (line,) = differing({1: USUAL, 2: {**USUAL, "delete_gap_ms": 5}, 3: {}}, 1)
    assert line == "retention.delete_gap_ms differs: 100 on node 1, 5 on node 2; each node goes by its own"


def test_status_says_so() -> None:
    def node(number: int, **settings: Any) -> NodeView:
        status = {
            "term": 2,
            "role": "leader" if number == 2 else "follower",
            "leader": 2,
            "retention": {**USUAL, **settings},
        }
        return NodeView(NodeRecord(number, 1, 1, 1, 1, 1, ""), True, status)

    nodes = [node(1, hours=1), node(2), node(3)]
    (line,) = retention_lines(GroupStatus(nodes))
    assert "1 on node 1, 72 on node 2, 72 on node 3; node 2 leads: its 72 counts" in line
    assert retention_lines(GroupStatus([nodes[0], nodes[1]._replace(status=None)])) == []
