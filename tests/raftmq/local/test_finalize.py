"""All groups of a cluster get one level: the first one last, and none if one cannot."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.local.finalize import finalized, look_at
from raftmq.local.http.all_groups import alone_told
from raftmq_wire.errors import ExitCode, LocalError


class Group:
    """The HTTP API of a group whose members know levels up to `knows`."""

    def __init__(self, number: int, asked: list[str], *, level: int = 13, knows: int = 14, why: str = "") -> None:
        self.number, self.asked = number, asked
        self.level, self.knows, self.why = level, knows, why

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/v1/upgrade/finalize"
        dry_run = body.get("dry_run", False)
        self.asked.append(f"{'ask' if dry_run else 'raise'} {self.number}")
        if self.why and (self.why.startswith("node") or not dry_run):
            raise LocalError("the cluster stays at level 13", self.why, "raftmq upgrade plan", ExitCode.REFUSED)
        before, raises = self.level, not dry_run and self.level < self.knows
        self.level = self.knows if raises else self.level
        return {"before": before, "level": self.knows, "index": 7 if raises else None, "broadcast_groups": []}


def test_the_first_group_is_raised_last() -> None:
    asked: list[str] = []
    apis = {number: Group(number, asked) for number in (1, 2, 3)}
    would = look_at(apis)
    assert (would.before, would.level, would.left) == (13, 14, [2, 3, 1])
    assert asked == ["ask 1", "ask 2", "ask 3"]
    asked.clear()
    answers = finalized(apis, would)
    assert asked == ["raise 2", "raise 3", "raise 1"]
    assert [(group, answer["index"]) for group, answer in answers.items()] == [(1, 7), (2, 7), (3, 7)]
    assert look_at(apis).left == []


def test_nothing_is_raised_if_one_group_cannot() -> None:
    asked: list[str] = []
    apis = {1: Group(1, asked), 2: Group(2, asked, why="node 3 (voter) is down"), 3: Group(3, asked)}
    with pytest.raises(LocalError, match="group 2: the cluster stays at level 13") as caught:
        look_at(apis)
    assert (caught.value.why, caught.value.exit_code) == ("node 3 (voter) is down", ExitCode.REFUSED)
    assert not any(each.startswith("raise") for each in asked)


def test_groups_whose_members_know_other_levels_are_refused_together() -> None:
    apis = {1: Group(1, [], knows=14), 2: Group(2, [], knows=13)}
    with pytest.raises(LocalError, match="the members of group 2 know levels up to 13") as caught:
        look_at(apis)
    assert "those of group 1 know level 14" in caught.value.why


def test_a_group_that_was_raised_before_is_left_alone() -> None:
    asked: list[str] = []
    apis = {1: Group(1, asked), 2: Group(2, asked, level=14)}
    would = look_at(apis)
    assert (would.before, would.left) == (13, [1])
    finalized(apis, would)
    assert asked[2:] == ["raise 1"]


def test_a_refusal_on_the_way_says_what_was_raised_and_ends_it() -> None:
    asked: list[str] = []
    apis = {1: Group(1, asked), 2: Group(2, asked), 3: Group(3, asked, why="no leader")}
    with pytest.raises(LocalError, match="group 3: ") as caught:
        finalized(apis, look_at(apis))
    assert caught.value.why == "no leader; raised before: group 2, and those after it were left alone"
    assert caught.value.exit_code is ExitCode.UNKNOWN
    assert asked[3:] == ["raise 2", "raise 3"]


def test_one_group_alone_is_not_named() -> None:
    apis = {1: Group(1, [], why="node 2 (voter) is down")}
    with pytest.raises(LocalError, match=r"^the cluster stays at level 13"):
        look_at(apis)


def test_a_person_who_names_one_group_of_several_is_warned() -> None:
    view = {"group": 2, "groups": [{"group": group} for group in (1, 2, 3)]}
    assert alone_told(view, "raised", ", and group 1 last") == [
        "only group 2 is raised, whose addresses were given; the others, 1, 3, are raised at theirs, and group 1 last"
    ]
    assert alone_told({"group": 1, "groups": []}, "raised") == []
