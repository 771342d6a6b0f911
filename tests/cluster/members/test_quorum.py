"""The number of failures that a set of voters survives, in numbers and in words."""

from __future__ import annotations

from typing import Any

from cluster.config.local_layout import NodeRecord
from cluster.members.checks import before_and_after, quorum_of, told
from raftmq.commands.nodes.status import quorum_lines
from raftmq.local.status import GroupStatus, NodeView
from tests.support.rows import each_row


@each_row(
    ("voters", "away", "survives", "finding"),
    [
        ([1], [], 0, "no failure is survived: node 1 is the only voter"),
        ([1, 2], [], 0, "no failure is survived: both voters, 1, 2, are needed"),
        ([1, 2], [2], -1, "no majority: node 2 of the voters 1, 2 is away, and writes need 2"),
        ([1, 2, 3], [], 1, ""),
        ([1, 2, 3], [3], 0, "the next failure stops writes: node 3 of the voters 1, 2, 3 is away"),
        ([1, 2, 3], [2, 3], -1, "no majority"),
        ([1, 2, 3, 4], [], 1, ""),
        ([1, 2, 3, 4], [4], 0, "the next failure stops writes"),
        ([1, 2, 3, 4, 5], [5], 1, ""),
        ([1, 2, 3, 4, 5], [4, 5], 0, "the next failure stops writes: nodes 4, 5 of the voters 1, 2, 3, 4, 5 are away"),
    ],
)
def test_what_is_survived(voters: list[int], away: list[int], survives: int, finding: str) -> None:
    quorum = quorum_of(reversed(voters), lambda voter: voter not in away)
    assert (quorum.survives, quorum.away) == (survives, away)
    assert quorum.finding.startswith(finding)
    assert bool(quorum.finding) is bool(finding)


def members(*voters: int, silent: tuple[int, ...] = ()) -> dict[str, Any]:
    """Returns the members as the leader, node 1, tells of them; node 9 is a learner."""
    told = [{"id": node, "role": "voter", "live": None if node == 1 else node not in silent} for node in voters]
    return {"leader": 1, "members": [*told, {"id": 9, "role": "learner", "live": True}]}


def test_the_voters_before_and_after_a_removal() -> None:
    before, after = before_and_after(members(1, 2, 3, 4, silent=(4,)), 3)
    assert told(before) == "voters 1, 2, 3, 4 (4 away); 3 of 4 are a majority; no failure is survived"
    assert told(after) == "voters 1, 2, 4 (4 away); 2 of 3 are a majority; no failure is survived"
    assert told(before_and_after(members(1, 2, 3, 4, 5), 1)[0]).endswith("2 failures are survived")
    assert told(before_and_after(members(1, 2, silent=(2,)), 1)[1]).endswith("no majority: no writes")
    before, after = before_and_after(members(1, 2, 3), 9)
    assert before == after


def test_status_prints_the_leaders_word() -> None:
    def node(number: int, finding: str, **more: Any) -> NodeView:
        record = NodeRecord(number, 1, 1, 1, 1, 1, "")
        status = {"term": 2, "role": "follower", "leader": 2, "quorum": {"finding": finding}, **more}
        return NodeView(record, True, status)

    nodes = [node(1, "node 2 is away, I think"), node(2, "the leader knows", role="leader", writes_open=True)]
    assert quorum_lines(GroupStatus(nodes)) == ["the leader knows"]
    assert quorum_lines(GroupStatus([nodes[0], node(2, "", role="leader")])) == []
    assert quorum_lines(GroupStatus([nodes[0]])) == ["node 2 is away, I think"]
    assert quorum_lines(GroupStatus([nodes[0]._replace(status=None)])) == []
    twice = [*nodes, node(2, "the leader knows more by now", role="leader", writes_open=True)]
    assert quorum_lines(GroupStatus(twice)) == ["the leader knows"], "two addresses of one node were given"
