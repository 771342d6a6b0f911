"""A finding as the API shows it."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.runtime.findings import Severity


class Cause(msgspec.Struct, frozen=True):
    """The code and the object of a finding that has caused another one."""

    code: str
    object: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, identified by `code` and `object`. Programs may rely on these two fields."""

    code: str
    severity: Severity
    since: str
    """The time when the problem was first seen, RFC 3339, UTC, by the clock of the node that saw it first."""
    object: str
    """The object of the problem: "cluster", "node 3", "link 1-3", "group orders", "queue orders/2",
    "topic orders". Nodes of further groups of brokers are "node 2/3", "link 2/1-2/3"."""
    says: str
    """A sentence for people that describes the problem."""
    do_now: str
    """The first command to type."""
    runbook: str
    """The address of the section about this code in the documentation."""
    seen_by: list[int]
    """Ids of the nodes that report the finding, within their group of brokers."""
    because_of: Cause | None = None
    """The finding that is the cause of this one, and should be solved first; null if none is known."""

    @property
    def key(self) -> tuple[str, str]:
        """(code, object) of the finding."""
        return self.code, self.object


class FindingsView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/findings`: the node's own findings, and values that another node compares with its own."""

    node: int
    consistency: Literal["local"] = "local"
    wall_ms: int
    """The node's wall clock, milliseconds since the Unix epoch."""
    settings: dict[str, str]
    """Keys of the configuration that should be equal on all nodes -> value as TOML."""
    findings: list[Finding]
    disk_used_percent: float = 0.0
    """Percentage of the data directory's file system that is in use."""
    connections: int = 0
    """Number of connections of clients."""
    leader: int | None = None
    """The id of the leader that the node knows; None if it knows none, or if its release is too old to report it."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Says if a member answered recently, and how long ago."""

    node: int
    answers: bool
    """True if its HTTP API answered when it was last asked."""
    age_ms: int | None
    """Milliseconds since it last answered; None: never."""
