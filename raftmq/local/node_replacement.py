"""`raftmq node replace NODE --config FILE --via URL`: a new node on this machine takes the place of another one.

The new node is added as a learner, started by its operator, and promoted by the leader; then the old node is removed.
The command checks before each step if it was made, so an interrupted command continues when it is typed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.config.loading import load
from cluster.members.new_node import prepare
from raftmq.local.http.admin_http import AdminApi, ApiRefusal, admin_addresses
from raftmq.local.http.https import chosen_tls
from raftmq.local.tls.node_certificates import steps_before_start
from raftmq_wire.errors import ExitCode, LocalError

LOOK = "raftmq node list"
POLL_S = 1.0


def replace_elsewhere(
    node: int, config: Path, via: str, secret: Path | None, tell: Callable[[str], object]
) -> list[int]:
    """Replaces `node`; returns the voters once the new node votes and `node` is removed. Raises ConfigError,
    LocalError."""
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
    members = _members(api)
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
        api.post("/v1/members", {**prepared.request, "auto_promote": True})
    tell(f"node {own} is a member; start it now, if it does not run:")
    certify = steps_before_start(load(config, os.environ), config, over_tls=chosen_tls() is not None)
    for step in (*certify, f"raftmq serve --config {config}"):
        tell(f"    {step}")
    while (member := members.get(own, {})).get("role") != "voter":
        if member:
            tell(f"node {own} is a learner; waiting until it has caught up and votes")
        time.sleep(POLL_S)
        members = _members(api)
    if node in members:
        tell(f"node {own} votes; removing node {node}")
        _patiently(lambda: api.delete(f"/v1/members/{node}?below_three=true"))  # as many as there were
    return sorted(each for each, member in _members(api).items() if member["role"] == "voter")


def _members(api: AdminApi) -> dict[int, dict[str, Any]]:
    found = _patiently(lambda: api.get("/v1/members"))
    return {member["id"]: member for member in found["members"]}


def _patiently(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Repeats a request while a leader is elected."""
    for _ in range(30):
        try:
            return ask()
        except ApiRefusal as error:
            if not error.is_passing:
                raise
        time.sleep(POLL_S)
    return ask()
