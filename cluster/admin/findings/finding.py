"""A finding as the API shows it."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.runtime.findings import Severity


class Cause(msgspec.Struct, frozen=True):
    """The finding of which another one is a consequence."""

    code: str
    object: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, identified by `code` and `object`. Programs may rely on both."""

    code: str
    severity: Severity
    since: str
    """The time when the problem was first seen, RFC 3339, UTC, by the clock of the node that saw it first."""
    object: str
    """The object of the problem: "cluster", "node 3", "link 1-3", "group orders", "queue orders/2",
    "topic orders". Nodes of further groups of brokers are "node 2/3", "link 2/1-2/3"."""
    says: str
    """The problem, in words for people."""
    do_now: str
    """The first command to type."""
    runbook: str
    """The section of the documentation about this code."""
    seen_by: list[int]
    """Ids, in their group of brokers, of the nodes that report the finding."""
    because_of: Cause | None = None
    """The finding that explains this one; solve that first."""

    @property
    def key(self) -> tuple[str, str]:
        """Code and object."""
        return self.code, self.object


class FindingsView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/findings`: the node's own findings, and values that the other nodes compare with their
    own."""

    node: int
    consistency: Literal["local"] = "local"
    wall_ms: int
    """The node's wall clock, milliseconds since the Unix epoch."""
    settings: dict[str, str]
    """Keys of the configuration that should be equal on all nodes -> value as TOML."""
    findings: list[Finding]
    disk_used_percent: float = 0.0
    """Use of the file system of its data directory."""
    connections: int = 0
    """Connections of clients."""
    leader: int | None = None
    """The leader that the node knows; None if it knows none, or from a release that does not report it."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one member's findings: if it answers, and the age of its last answer."""

    node: int
    answers: bool
    """True if its HTTP API answered when it was last asked."""
    age_ms: int | None
    """Milliseconds since it last answered; None: never."""
