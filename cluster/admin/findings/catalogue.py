"""Says which finding may be the cause of which other one. Also has the first commands to type where a cluster was not
started by `raftmq up`.

The codes themselves are declared by the services whose problems they name (`cluster.runtime.findings`).
"""

from __future__ import annotations

from typing import Final

from cluster.config.local_layout import Place
from cluster.runtime.findings import Code

RUNBOOKS: Final = "docs/runbooks.md"


BECAUSE_OF: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "no_leader": (("no_quorum", "same"), ("crash_loop", "any"), ("node_down", "any"), ("link_suspect", "end")),
    "no_quorum": (
        ("crash_loop", "any"),
        ("node_down", "any"),
        ("log_waits_for_space", "any"),
        ("link_suspect", "end"),
    ),
    "no_quorum_margin": (
        ("node_maintenance", "any"),
        ("crash_loop", "any"),
        ("node_down", "any"),
        ("node_stopping", "any"),
        ("link_suspect", "any"),
    ),
    "node_down": (("node_maintenance", "same"), ("crash_loop", "same"), ("node_stopped", "same")),
    "node_silent": (("node_maintenance", "same"), ("node_down", "same"), ("node_stopping", "same")),
    "node_stopped": (("data_lost", "same"), ("log_waits_for_space", "same"), ("disk_full", "same")),
    "link_suspect": (("node_down", "end"), ("node_silent", "end"), ("node_stopping", "end"), ("removed", "end")),
    "follower_behind": (
        ("node_maintenance", "same"),
        ("node_down", "same"),
        ("recovering", "same"),
        ("log_waits_for_space", "same"),
        ("disk_full", "same"),
        ("disk_slow", "same"),
        ("install_failing", "same"),
        ("link_suspect", "end"),
    ),
    "degraded": (("disk_slow", "any"), ("link_suspect", "any"), ("node_down", "any"), ("follower_behind", "any")),
    "recovering": (("crash_loop", "same"), ("unclean_restart", "same")),
    "unclean_restart": (("crash_loop", "same"),),
    "log_waits_for_space": (("disk_full", "same"),),
    "disk_full": (("log_pinned", "any"), ("tier_stuck", "any")),
    "disk_filling": (("log_pinned", "any"),),
    "checkpoint_failed": (("data_lost", "same"),),
    "digest_not_compared": (("no_quorum", "any"), ("no_leader", "any"), ("fenced", "any"), ("node_down", "any")),
    "vote_withheld": (("log_damage", "same"),),
    "install_failing": (("no_leader", "any"), ("node_down", "any")),
    "backup_failed": (("disk_full", "same"),),
    "backup_old": (("backup_failed", "same"),),
    "queue_stuck": (("no_leader", "any"),),
    "disk_slow": (("failpoint_set", "same"),),
    "slow_turns": (("failpoint_set", "same"),),
}
"""Code of a consequence -> (code of a possible cause, relation), the most likely cause first. The relation says which
object the cause must be about. `same`: the same one; `end`: a node at an end of the link, or a link of the node; `any`:
any object."""


UNPROVEN_DO: Final = "raftmq secret status"
"""The command for a link between two nodes, if one of them did not prove the cluster's secret. Both nodes are
running."""

_BESIDE_UP: Final = ("raftmq restart {n}", "raftmq logs {n}", "raftmq down", "raftmq node replace {n}")
"""Commands that work only beside a cluster that `raftmq up` made."""
_REPLACE: Final = "raftmq node replace {n} --config FILE --via URL    (on the machine of the new node)"
_INSTEAD: Final[dict[Place, tuple[str, str, str, str]]] = {
    "up": _BESIDE_UP,
    "machine": (
        "raftmq serve --config FILE    (on the machine of node {n}, or start its service)",
        "journalctl -u raftmq    (on the machine of node {n}, or where its output is kept)",
        "raftmq serve --config FILE    (restart node {n} so, with failpoints.enabled = false)",
        _REPLACE,
    ),
    "container": (
        "docker restart CONTAINER    (that of node {n}; or start it as it was started: raftmq serve --config FILE)",
        "docker logs CONTAINER    (that of node {n}; or where its output is kept)",
        "docker restart CONTAINER    (that of node {n}, with failpoints.enabled = false in its file)",
        _REPLACE,
    ),
    "compose": (
        "docker compose restart n{n}    (on the machine of the containers; or start node {n} as it was started)",
        "docker compose logs n{n}    (on the machine of the containers; or where the output of node {n} is kept)",
        "docker compose restart n{n}    (with failpoints.enabled = false in the file of node {n})",
        _REPLACE,
    ),
    "kubernetes": (
        "kubectl delete pod POD    (the first word of the address of node {n} in raftmq node list; it starts again)",
        "kubectl logs POD -c node --previous    (the first word of the address of node {n} in raftmq node list)",
        "kubectl delete pod POD    (that of node {n}, with failpoints.enabled = false in its configuration)",
        _REPLACE,
    ),
}
"""Place where a cluster runs -> the commands there, in the same order as in _BESIDE_UP, whose commands they replace."""


def command_of(code: Code, number: object, place: Place = "up") -> str:
    """Returns the first command to type about a finding, in the form that works where the cluster runs. `number` is the
    node's name."""
    instead = dict(zip(_BESIDE_UP, _INSTEAD[place], strict=True))
    return instead.get(code.do_now, code.do_now).format(n=number)


def runbook_of(code: str) -> str:
    """Returns the address of the documentation about the code."""
    return f"{RUNBOOKS}#{code}"
