"""Finds the nodes of a local cluster whose directories were lost, and makes the errors about them."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.config.local_layout import NodeRecord, groups_of
from raftlog.types import FIRST_GROUP
from raftmq.local.init import is_empty, is_without_identity
from raftmq_wire.errors import ExitCode, LocalError


def lost_nodes(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Returns the nodes whose directories were lost, provided that the other nodes of their group are a majority. A
    lost directory has no node's identity: it is empty, or has files that a running node wrote after the directory was
    deleted.

    Such a node is replaced, not started: it would vote again without remembering its votes.
    """
    found: list[NodeRecord] = []
    for group in groups_of(nodes):
        own = [node for node in nodes if node.group == group]
        lost = [node for node in own if is_without_identity(node.home / "data")]
        found += lost if 2 * len(lost) < len(own) else []
    return found


def dead_groups(nodes: Sequence[NodeRecord]) -> list[int]:
    """Returns the further groups that have lost the directories of so many nodes that the remaining nodes are no
    majority. The first group is never among them, because without it there is no cluster."""
    dead = []
    for group in groups_of(nodes):
        own = [node for node in nodes if node.group == group]
        lost = [node for node in own if is_without_identity(node.home / "data")]
        if group != FIRST_GROUP and 2 * len(lost) >= len(own):
            dead.append(group)
    return dead


def dead_group(group: int, nodes: Sequence[NodeRecord]) -> LocalError:
    """Returns the error for a group that does not start. `nodes`: its nodes."""
    lost = [node for node in nodes if is_without_identity(node.home / "data")]
    return LocalError(
        f"group {group} is lost and is not started",
        f"{len(lost)} of its {len(nodes)} data directories are lost, and the others are no majority",
        f"put {', '.join(str(node.home / 'data') for node in lost)} back    (or: raftmq runbook no_quorum)",
        ExitCode.REFUSED,
    )


def lost_disk(node: NodeRecord) -> LocalError:
    """Returns the error for a node that lost its disk and does not start."""
    directory = node.home / "data"
    how = "is empty" if is_empty(directory) else "was lost, and what is left in it is no node's"
    return LocalError(
        f"the data directory of node {node.name} {how}: {directory}",
        "a node that starts empty under a known id has forgotten its votes and could vote twice",
        f"raftmq node replace {node.name}    (while the others are running; or put its directory back)",
        ExitCode.REFUSED,
    )
