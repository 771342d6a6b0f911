"""`raftmq node replace NODE --config FILE --via URL`: a new node on this machine takes the place of another one.

The new node is added as a learner, started by its operator, and promoted by the leader; then the old node is removed.
Before each step, the command checks whether the step was already done, so an interrupted command can be repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.config.loading import load
from cluster.members.new_node import prepare
from raftmq.local.http.admin_http import AdminApi, admin_addresses
from raftmq.local.http.https import chosen_tls
from raftmq.local.settled_changes import SETTLED_S, when_settled, while_passing
from raftmq.local.tls.node_certificates import steps_before_start
from raftmq_wire.errors import ExitCode, LocalError

LOOK = "raftmq node list"
POLL_S = 1.0


def replace_elsewhere(
    node: int, config: Path, via: str, secret: Path | None, tell: Callable[[str], object], poll_s: float = POLL_S
) -> list[int]:
    """Replaces `node`; returns the voters once the new node votes and `node` is removed. `tell` is called with each
    stage, and again while the stage lasts; `poll_s`: seconds between two checks. Raises ConfigError, LocalError."""
    own = load(config, os.environ).node.id
    if own == node:
        raise LocalError(
            f"{config} says node.id = {node}, the node that is to be replaced",
            "an id belongs to one disk for ever: the new node needs one that was never used",
            f"write another id under [node] and in [[peers]] of {config}; raftmq node list --admin {via} shows those "
            "in use",
            ExitCode.USAGE,
        )
    addresses = admin_addresses(via)
    api = AdminApi(addresses, LOOK)
    members, _ = _members(api)
    if own not in members and node not in members:
        raise LocalError(
            f"node {node} is no member",
            f"the members are {', '.join(map(str, sorted(members)))}",
            f"raftmq node list --admin {via}",
            ExitCode.REFUSED,
        )
    if own not in members:
        prepared = prepare(config, api.get("/v1/members/join"), None, secret, node, os.environ)
        for note in prepared.notes:
            tell(note)
        request = {**prepared.request, "auto_promote": True}
        when_settled(lambda: while_passing(lambda: api.post("/v1/members", request)), tell)
    tell(f"node {own} is a member; start it now, if it does not run:")
    certify = steps_before_start(load(config, os.environ), config, over_tls=chosen_tls() is not None)
    for step in (*certify, f"raftmq serve --config {config}"):
        tell(f"    {step}")
    members = _until_it_votes(api, own, node, tell, poll_s)
    if node in members:
        tell(f"node {own} votes; removing node {node}")
        remove = f"/v1/members/{node}?below_three=true"  # the number of nodes stays the same
        when_settled(lambda: while_passing(lambda: api.delete(remove)), tell)
    members, _ = _members(api)
    return sorted(each for each, member in members.items() if member["role"] == "voter")


def _until_it_votes(
    api: AdminApi, own: int, node: int, tell: Callable[[str], object], poll_s: float
) -> dict[int, dict[str, Any]]:
    """Waits until `own` is a voter. If `node` is still a member, then waits, for up to SETTLED_S, until the change that
    made `own` a voter is committed, because the removal must come after it. Returns id -> member."""
    voted_at = None
    while True:
        members, committed = _members(api)
        if members.get(own, {}).get("role") != "voter":
            voted_at = None  # a new leader may lack the entry that made it a voter
        else:
            voted_at = voted_at or time.monotonic()
            if committed or node not in members or time.monotonic() - voted_at >= SETTLED_S:
                return members
        if own in members:
            tell(_progress(own, members[own]))
        time.sleep(poll_s)


def _progress(own: int, member: dict[str, Any]) -> str:
    """Returns, in words, how far the new node has caught up. If the answer is not the leader's, it has only the
    role."""
    if member["role"] == "voter":
        return f"node {own} becomes a voter; waiting until that is committed"
    waiting = f"node {own} is a learner; waiting until it has caught up and votes"
    if member["live"] is False:
        silent = "hears nothing of it" if member["connected"] else "has no connection to it"
        return f"{waiting}: the leader {silent} (does it run, and does the leader take its certificate and secret?)"
    if member["state"] == "SNAPSHOT":
        return f"{waiting}: it fetches a snapshot"
    return waiting if member["lag_entries"] is None else f"{waiting}: {member['lag_entries']:,} entries behind"


def _members(api: AdminApi) -> tuple[dict[int, dict[str, Any]], bool]:
    """Returns (the members by id, True if the last change of the members is committed)."""
    found = while_passing(lambda: api.get("/v1/members"))
    return {member["id"]: member for member in found["members"]}, found["committed"]
