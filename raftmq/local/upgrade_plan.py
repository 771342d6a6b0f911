"""The plan of an upgrade: the nodes that run another version than this command, and what each step waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cluster.config.local_layout import name_of
from raftlog.types import FIRST_GROUP
from raftmq.local import stop_check
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.status import fetch_status
from raftmq_wire.errors import ExitCode, LocalError


class NodePlan(NamedTuple):
    """One node, and the step that an upgrade plans for it."""

    node: int
    role: str
    leads: bool
    version: str
    """The version that the node runs; "" if it does not answer."""
    level: int | None
    """The highest level that the node's version knows; None if it is down."""
    step: str
    """The node's state in the plan: `done`, `next`, `later` or `down`."""
    why: str
    """The reason why the node cannot be upgraded now, if `step` is `next` or `down`; "" if it can, and for other
    steps."""


class UpgradePlan(NamedTuple):
    """The remaining steps of an upgrade; at most one is `next`, which is safe now."""

    version: str
    """The version of this command, to which the nodes are upgraded."""
    known: int
    """The highest level that this command's version knows."""
    level: int
    """The present level of the cluster."""
    nodes: list[NodePlan]
    finalizes: bool
    reasons: list[str]
    """Reasons why the cluster cannot be finalized now."""


def view_of(addresses: list[str]) -> dict[str, Any]:
    """Returns the answer to `GET /v1/upgrade` of the first node that answers. Raises LocalError."""
    return AdminApi(addresses, "raftmq upgrade plan").local("/v1/upgrade")


def plan_of(addresses: Mapping[int, str], version: str, known: int, asked: Sequence[str] = ()) -> UpgradePlan:
    """Asks the cluster and returns the plan. `addresses`: node -> "host:port" of its HTTP API. `asked`: the addresses
    that the user named, whose nodes also report about the others; () if all addresses may be asked directly. Raises
    LocalError."""
    everybody = list(asked) or list(addresses.values())
    view = view_of(everybody)
    if known < view["level"]:
        raise LocalError(
            f"this version cannot be installed on the cluster: it knows levels up to {known}",
            f"the cluster was finalized at level {view['level']}, and there is no way back from that",
            "use the newer version: pip install --upgrade 'raftmq[server]'",
            ExitCode.REFUSED,
        )
    members = AdminApi(everybody, "raftmq node list").local("/v1/members")
    leader = members["leader"]
    order = sorted(view["members"], key=lambda each: (each["id"] == leader, each["id"]))
    nodes: list[NodePlan] = []
    for each in order:
        node = each["id"]
        runs = _version_at(addresses.get(node)) or _version_told(everybody, node)
        step, why = "later", ""
        if not runs:
            step, why = "down", "it does not answer: start it first, or remove it: raftmq node remove"
        elif runs == version and each["level"] == known:
            step = "done"
        elif all(before.step == "done" for before in nodes):
            step, why = "next", _in_the_way(everybody, node)
        nodes.append(NodePlan(node, each["role"], node == leader, runs, each["level"], step, why))
    return UpgradePlan(version, known, view["level"], nodes, view["finalizes"], view["reasons"])


def _version_at(address: str | None) -> str:
    if address is None:
        return ""
    status = fetch_status(address, 2.0)
    return "" if status is None else str(status["versions"].get("raftmq", "unknown"))


def _version_told(asked: list[str], node: int) -> str:
    """Returns the version of a node as the nodes at the named addresses report it; tokens are sent to no other
    address."""
    try:
        status = AdminApi(asked, "raftmq upgrade plan").local(f"/v1/members/{node}/status")
    except LocalError:
        return ""
    return str(status["versions"].get("raftmq", "unknown"))


def _in_the_way(addresses: list[str], node: int) -> str:
    """Returns the reason why the node must not be stopped now; "" if it may be."""
    try:
        answer = stop_check.ask(addresses, node)
    except ApiRefusal as error:
        return error.what
    if answer is None:
        return "no leader answers"
    return "" if answer["allowed"] else "; ".join(answer["reasons"])


def require_all(plan: UpgradePlan, group: int = FIRST_GROUP) -> None:
    """Raises LocalError if an upgrade of a group must not begin: if a member is down, or if the installed version's
    level is more than one above the cluster's."""
    down = [each for each in plan.nodes if each.step == "down"]
    if down:
        name = name_of(group, down[0].node)
        raise LocalError(
            f"the upgrade does not begin: node {name} ({down[0].role}) does not answer",
            "with a member down, a second one that fails to start could stop the cluster",
            f"raftmq restart {name}    (or raftmq node remove {name})",
            ExitCode.REFUSED,
        )
    if plan.known - plan.level > 1:
        raise LocalError(
            f"this version knows level {plan.known}, and the cluster has level {plan.level}: they are two levels apart",
            "a cluster is mixed across one level only; the levels in between were not tried together",
            f"install the version of level {plan.level + 1}, then: raftmq upgrade run; raftmq upgrade finalize",
            ExitCode.REFUSED,
        )
