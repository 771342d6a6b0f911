"""A leader at once, for tests of nodes in this process that are about something else."""

from __future__ import annotations

from cluster.node.node import Node


def stand(node: Node) -> None:
    """The started node asks for votes now, not after its election timeout; it repeats that until the others are up."""
    node.raw.campaign()
    node.driver.wake()
