"""Adds and removes nodes of a live subject, while faults and load go on.

Every change is asked for again until the cluster reports it as done, because a leader may be gone or changing, another
change in progress, or an answer lost. A change that is not done within MEMBERS_S counts as a fault without effect.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config.loading import load
from cluster.members.joining import add_request, make_directory
from cluster.peer.secret import path_of
from cluster.peer.secret_files import copy
from raftlog.storage.files.fs import OsFileSystem
from raftmq.local.http.admin_http import AdminApi
from raftmq.local.http.credentials import address_of
from raftmq.local.waiting import until
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

MEMBERS_S = 120.0
TOLD_S = 20.0
POLL_S = 0.1

View = dict[str, Any]
"""The answer of `GET /v1/members`."""


class LiveMembers:
    """Adds and removes nodes of a cluster of real processes; implements ChangesMembers."""

    def __init__(self, subject: RaftMQSubject) -> None:
        self._subject = subject
        self._clock = time.monotonic

    def view(self) -> View | None:
        """Returns the members as the leader knows them; None while no node can tell."""
        for api in self._apis():
            with suppress(LocalError):
                return api.get("/v1/members")
        return None

    def _apis(self) -> list[AdminApi]:
        nodes = [node for node in self._subject.nodes if self._subject.is_running(node.id)]
        return [AdminApi([address_of(node)], "raftmq node list") for node in nodes]

    def reach(self, wanted: Callable[[View], bool], ask: Callable[[AdminApi], object] | None = None) -> bool:
        """Calls `ask` until the members are as wanted and the change is committed; returns False if they are not in
        time."""
        deadline = self._clock() + MEMBERS_S
        while self._clock() < deadline:
            view = self.view()
            if view is not None and view["committed"] and wanted(view):
                return True
            if view is not None and ask is not None:
                for api in self._apis()[:1]:
                    with suppress(LocalError):
                        ask(api)
            time.sleep(POLL_S)
        return False

    def join(self, *, manual: bool = False) -> int:
        """Starts a node with an empty disk as a learner; returns its id, 0 if it is not added in time. With `manual` it
        stays a learner."""
        node = self._subject.plan_joining()
        config = load(node.config_path)
        if not self.reach(lambda view: True):
            self._subject.drop(node.id)
            return 0
        join = next(iter(self._apis())).get("/v1/members/join")
        now_ms = time.time_ns() // 1_000_000
        identity = make_directory(OsFileSystem(), Path(config.node.data_dir), node.id, join, now_ms)
        known = [load(other.config_path) for other in self._subject.nodes if other.id != node.id]
        copy(next(other for other in known if path_of(other).exists()), config, join["cluster_id"])
        self._subject.certify(node)
        request = add_request(config, identity, auto_promote=not manual)
        added = self.reach(lambda view: role_of(view, node.id) != "", lambda api: api.post("/v1/members", request))
        if not added:
            self._subject.drop(node.id)
            return 0
        self._subject.start_node(node.id)
        return node.id

    def voters(self) -> list[int]:
        """Returns the voters' ids, as the leader knows them; [] if no node can tell."""
        view = self.view()
        return [each["id"] for each in view["members"] if each["role"] == "voter"] if view else []

    def wait_voter(self, node: int) -> bool:
        """Waits until the node votes, since the leader promotes it by itself; returns True if it does in time."""
        return self.reach(lambda view: role_of(view, node) == "voter")

    def wait_caught_up(self, node: int) -> bool:
        """Waits until the learner has caught up with the others; returns True if it does in time."""
        return self.reach(lambda view: any(each["caught_up"] for each in view["members"] if each["id"] == node))

    def is_learner(self, node: int) -> bool:
        """Returns True if the node is a learner and no change of its role is in progress."""
        view = self.view() if self.reach(lambda view: True) else None
        return view is not None and role_of(view, node) == "learner"

    def leave(self, node: int) -> bool:
        """Removes the node from the cluster, waits until the node itself, if it runs, reports its removal, and stops
        its process; returns True if that worked in time."""
        path = f"/v1/members/{node}?below_three=true"
        left = self.reach(lambda view: role_of(view, node) == "", lambda api: api.delete(path))
        if node not in self._subject.node_ids:
            return left
        told = left and self._says_removed(node)
        self._subject.drop(node)
        return told

    def _says_removed(self, node: int) -> bool:
        def says_so() -> bool:
            with suppress(OSError):
                return self._subject.request(node, "GET", "/v1/members")["removed_since"] is not None
            return False

        return until(says_so, TOLD_S, POLL_S)

    def lose(self, node: int) -> bool:
        """Kills the node and removes its disk; it stays a member until it is removed. Returns True if it ran."""
        killed = self._subject.kill(node)
        data = self._subject.data_of(node)
        self._subject.drop(node)
        shutil.rmtree(data, ignore_errors=True)
        return killed


def role_of(view: View, node: int) -> str:
    """Returns the node's role, voter or learner; "" if it is no member."""
    return next((str(each["role"]) for each in view["members"] if each["id"] == node), "")
