"""A change of the members that meets another one is asked for again, for a while, and only then."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.config.local_layout import ClusterFile, NodeRecord, write_cluster
from cluster.members.checks import IN_PROGRESS
from raftmq.cli import run
from raftmq.commands.stages import Lines
from raftmq.local.cluster import LocalCluster
from raftmq.local.http.admin_http import ApiRefusal
from raftmq.local.membership import LocalMembers
from raftmq.local.node_replacement import replace_elsewhere
from raftmq.local.settled_changes import LONGEST_S, SETTLED_S, when_settled, while_passing
from raftmq_wire.errors import ExitCode
from tests.support.answering_api import Asked, MakeApi

WHY = "node 4 becomes a voter: its entry 21 is not committed yet"


def unsettled() -> ApiRefusal:
    return ApiRefusal("refused", IN_PROGRESS, WHY, "raftmq node list", ExitCode.REFUSED)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses.append(pause_s)


def refusing(errors: list[ApiRefusal]) -> Callable[[], str]:
    """A change that fails with these errors, one after the other, and then is made."""

    def change() -> str:
        if errors:
            raise errors.pop(0)
        return "made"

    return change


def test_it_waits_until_the_other_change_is_committed_and_says_so_once() -> None:
    time, told = Time(), list[str]()
    errors = [unsettled() for _ in range(7)]
    assert when_settled(refusing(errors), told.append, time.sleep, lambda: time.now_s) == "made"
    assert told == [f"{IN_PROGRESS} ({WHY}); waiting until it is committed"]
    assert time.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_S, LONGEST_S]


def test_it_does_not_wait_for_ever_nor_for_another_refusal() -> None:
    time = Time()
    with pytest.raises(ApiRefusal, match=IN_PROGRESS):
        when_settled(refusing([unsettled() for _ in range(999)]), str, time.sleep, lambda: time.now_s)
    assert SETTLED_S <= time.now_s <= SETTLED_S + LONGEST_S
    other = ApiRefusal("refused", "without node 3 there would be no majority", "", "", ExitCode.REFUSED)
    again = Time()
    with pytest.raises(ApiRefusal, match="no majority"):
        when_settled(refusing([other]), str, again.sleep, lambda: again.now_s)
    assert again.pauses == []


def test_it_asks_again_while_the_refusal_passes() -> None:
    time = Time()
    passing = [ApiRefusal("failed", "the first Super is not committed yet", "", "", ExitCode.FAILED) for _ in range(3)]
    assert while_passing(refusing(list(passing)), time.sleep, lambda: time.now_s) == "made"
    assert time.pauses == [0.1, 0.2, 0.4]
    with pytest.raises(ApiRefusal, match="first Super"):
        while_passing(refusing(passing * 99), time.sleep, lambda: time.now_s)
    assert SETTLED_S <= time.now_s <= SETTLED_S + LONGEST_S + 1
    again = Time()
    with pytest.raises(ApiRefusal, match=IN_PROGRESS):
        while_passing(refusing([unsettled()]), again.sleep, lambda: again.now_s)
    assert again.pauses == []


class Cluster:
    """Nodes 1, 2 and 3, and 4, which joins; every change is refused twice, because another is in progress."""

    def __init__(self, make_api: MakeApi, *views: dict[str, Any]) -> None:
        """`views`: the members, as the next looks see them; the last one stays."""
        self.views = list(views)
        self.done: list[str] = []
        self._refusals = 0
        changes = ("POST /v1/members/4/promote", "DELETE /v1/members/3")
        self.api = make_api({"GET /v1/members": self._look, **dict.fromkeys(changes, self._change)})

    def _look(self, _: Asked) -> dict[str, Any]:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    def _change(self, asked: Asked) -> dict[str, Any]:
        self._refusals += 1
        if self._refusals % 3:
            raise unsettled()
        self.done.append(f"{asked.method} {asked.target}")
        return {"id": 3, "role": "removed", "index": 22, "voters": [1, 2, 4]}


def view(role: str = "voter", *, committed: bool = True, **of_four: Any) -> dict[str, Any]:
    known = {"host": "h", "port": 1, "admin": "h:2", "listeners": {}, "uuid": "u", "connected": True, "live": True}
    known |= {"state": "REPLICATE", "lag_entries": 0, "leader": False}
    voters = [{"id": node, "role": "voter", **known} for node in (1, 2, 3)]
    return {
        "members": [*voters, {"id": 4, "role": role, **known, **of_four}],
        "committed": committed,
        "cluster_id": "c",
        "leader": 1,
    }


def test_a_replacement_waits_for_its_own_change_and_tells_each_stage_once(make_api: MakeApi, tmp_path: Path) -> None:
    file = tmp_path / "n4.toml"
    file.write_text('[node]\nid = 4\ndata_dir = "data"\n')
    absent = {"live": False, "connected": False}
    cluster = Cluster(
        make_api,
        view("learner", live=None, lag_entries=None, state=None),
        *[view("learner", **absent)] * 9,
        *[view("learner", lag_entries=70)] * 9,
        *[view(committed=False)] * 9,
        view(),
    )
    told = list[str]()
    replace_elsewhere(3, file, f"http://{cluster.api.address}", None, Lines(told.append, time.monotonic), poll_s=0.0)
    assert cluster.done == ["DELETE /v1/members/3?below_three=true"]
    waiting = "node 4 is a learner; waiting until it has caught up and votes"
    silent = "the leader has no connection to it (does it run, and does the leader take its certificate and secret?)"
    assert told[2:] == [
        f"{waiting}: {silent}",
        f"{waiting}: 70 entries behind",
        "node 4 becomes a voter; waiting until that is committed",
        "node 4 votes; removing node 3",
        f"{IN_PROGRESS} ({WHY}); waiting until it is committed",
    ]


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        (["promote", "4"], "POST /v1/members/4/promote"),
        (["remove", "3", "--yes"], "DELETE /v1/members/3?below_three=true"),
    ],
)
def test_each_command_that_changes_the_members_waits(make_api: MakeApi, arguments: list[str], done: str) -> None:
    cluster = Cluster(make_api, view())
    assert run(["node", *arguments, "--admin", cluster.api.address]) == ExitCode.OK
    assert cluster.done == [done]


def test_a_local_cluster_waits_too(make_api: MakeApi, tmp_path: Path) -> None:
    cluster = Cluster(make_api, view())
    nodes = [NodeRecord(node, None, 1, 2, 3, cluster.api.port, str(tmp_path / f"n{node}" / "log")) for node in (1, 3)]
    for node in nodes:
        node.home.mkdir()
    write_cluster(tmp_path, ClusterFile(nodes))
    LocalMembers(LocalCluster(tmp_path)).remove(3)
    assert cluster.done == ["DELETE /v1/members/3"]
    assert [node.id for node in LocalCluster(tmp_path).nodes] == [1]
