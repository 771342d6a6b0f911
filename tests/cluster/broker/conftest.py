"""The node of the remoting tests: real state, everything else in the test's hands. Its handlers ask the services."""

from __future__ import annotations

from tests.cluster.remoting.conftest import config, connect, node, node_with

__all__ = ["config", "connect", "node", "node_with"]
