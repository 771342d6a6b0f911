"""Asks the cluster if a node may be stopped, and waits while waiting helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from cluster.config.local_layout import NodeName, key_of
from raftmq.local.http.admin_http import AdminApi, ApiRefusal
from raftmq_wire.errors import ExitCode, LocalError

POLL_S = 0.5


def ask(addresses: Sequence[str], node: NodeName) -> dict[str, Any] | None:
    """Asks the group of a node, whose addresses are given: sends `GET /v1/members/{id}/can-stop` and returns the
    answer. Returns None if there is no leader to answer: then the cluster accepts no writes anyway."""
    try:
        return AdminApi(addresses, "raftmq node list").local(f"/v1/members/{key_of(node)[1]}/can-stop")
    except LocalError as error:
        if error.exit_code is ExitCode.UNREACHABLE or (isinstance(error, ApiRefusal) and error.is_passing):
            return None
        raise


def require(
    addresses: Sequence[str],
    node: NodeName,
    wait_s: float,
    tell: Callable[[str], object] = lambda text: None,
    otherwise: str = "",
) -> dict[str, Any] | None:
    """Returns the answer once the node may be stopped; None if there is no leader to answer. Waits at most `wait_s`,
    and only for replicas that catch up. Raises LocalError if the node may not be stopped; `otherwise` is added to the
    error's advice."""
    deadline = time.monotonic() + wait_s
    while True:
        answer = ask(addresses, node)
        if answer is None or answer["allowed"]:
            return answer
        why = "; ".join(answer["reasons"])
        if not answer["passes"] or time.monotonic() >= deadline:
            raise LocalError(
                f"node {node} must not be stopped now",
                why,
                answer["do_now"] + otherwise,
                ExitCode.REFUSED,
                group=key_of(node)[0],
            )
        tell(f"waiting: {why}")
        time.sleep(POLL_S)
