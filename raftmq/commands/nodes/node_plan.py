"""Previews the removal of a node: shows the cluster without the node, and asks the user if fewer than three voters
would remain."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click
import msgspec

from cluster.config.local_layout import NodeName, key_of
from cluster.members.checks import SAFE_VOTERS, before_and_after, told
from raftmq.commands.shared_options import console, print_json
from raftmq.local import stop_check
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq.local.http.asked_nodes import no_node
from raftmq_wire.errors import ExitCode, LocalError


def show_plan(api: AdminApi, node: NodeName, *, as_json: bool) -> None:
    """Shows the voters before and after, and how many failures they survive. `api`: the HTTP API of the node's group.
    Changes nothing. Raises LocalError."""
    view, own = api.get("/v1/members"), key_of(node)[1]
    known = sorted(member["id"] for member in view["members"])
    if own not in known:
        raise no_node(node, known)
    before, after = before_and_after(view, own)
    asks = after != before and len(after.voters) < SAFE_VOTERS
    allowed = bool(after.voters) and after.survives >= 0
    if as_json:
        plan = {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}
        print_json({"schema": 1, "node": node, **plan, "allowed": allowed, "asks": asks})
        return
    out = console()
    out.print(f"now    {told(before)}")
    out.print(f"after  {told(after)}" if after != before else f"after  the same: node {node} is a learner")
    if not allowed:
        out.print(
            f"raftmq node remove {node} would be refused: the remaining nodes would have no majority", style="yellow"
        )
    else:
        out.print(f"to do it: raftmq node remove {node}" + (" --yes" if asks else ""))


def ask_before(api: AdminApi, addresses: Sequence[str], node: NodeName) -> bool:
    """Shows the voters before and after on stderr, and asks at a terminal. Returns True if the answer was yes, False if
    there is no terminal. Raises LocalError if the cluster cannot do without the node now."""
    may = stop_check.ask(addresses, node)
    if may is None:
        return False  # no leader answers: the removal itself waits for one, or reports the reason
    if not may["allowed"]:
        why = f"{'; '.join(may['reasons'])} (--yes removes it all the same, if a majority is left)"
        raise LocalError(f"node {node} must not be removed now", why, may["do_now"], ExitCode.REFUSED)
    before, after = before_and_after(api.get("/v1/members"), key_of(node)[1])
    err = console(stderr=True)
    err.print(f"now    {told(before)}", markup=False, soft_wrap=True)
    err.print(f"after  {told(after)}", markup=False, soft_wrap=True)
    if not sys.stdin.isatty():
        return False
    click.confirm(f"remove node {node}?", abort=True, err=True)
    return True


def confirmed(remove: Callable[[bool], None], *, yes: bool) -> None:
    """Calls `remove(True)` with `yes`, otherwise `remove(False)`. If the cluster then demands a confirmation, asks at a
    terminal and calls `remove(True)`, or raises its ApiRefusal if there is no terminal."""
    if yes:
        remove(True)
        return
    try:
        remove(False)
    except ApiRefusal as refusal:
        if refusal.code != "unconfirmed" or not sys.stdin.isatty():
            raise
        err = console(stderr=True)
        err.print(f"{refusal.what}: {refusal.why}", markup=False, soft_wrap=True)
    else:
        return
    click.confirm("go on?", abort=True, err=True)
    remove(True)
