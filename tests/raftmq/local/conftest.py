"""The shared fixtures of the tests of local clusters: `own_cluster`."""

from __future__ import annotations

from tests.support.node_commands import own_cluster

__all__ = ["own_cluster"]
