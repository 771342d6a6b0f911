"""A finding as the API shows it, and a condition: the same before anyone knows since when it holds."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""Least first."""
CLUSTER = "cluster"
"""The object of a finding that is about no node, link or group."""


class Cause(msgspec.Struct, frozen=True):
    """The finding of which another one is a consequence."""

    code: str
    object: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `code` and `object` together name it; a program may rely on both."""

    code: str
    severity: Severity
    since: str
    """RFC 3339, UTC, by the clock of the node that saw it first."""
    object: str
    """The subject: "cluster", "node 3", "link 1-3", "group orders", "queue orders/2"."""
    says: str
    """The problem, in words for people."""
    do_now: str
    """The command to start with."""
    runbook: str
    """The section of the documentation about this code."""
    seen_by: list[int]
    """Nodes that say so."""
    because_of: Cause | None = None
    """The finding that explains this one: mend that first."""

    @property
    def key(self) -> tuple[str, str]:
        """Code and object."""
        return self.code, self.object


class Condition(NamedTuple):
    """A problem that a rule found at this moment."""

    code: str
    object: str
    says: str
    do_now: str = ""
    """Instead of the catalogue's command."""
    severity: Severity | None = None
    """Instead of the catalogue's."""
    hold_ms: int = 0
    """It must hold so long before it is a finding."""
    since_ms: int | None = None
    """Wall clock; None: since it was first seen."""


class FindingsView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/findings`: what one node finds by itself, and what the others compare with their own."""

    node: int
    consistency: Literal["local"] = "local"
    wall_ms: int
    """Its clock, milliseconds since the Unix epoch."""
    settings: dict[str, str]
    """Keys of the configuration that should be equal on all nodes -> value as TOML."""
    findings: list[Finding]
    disk_used_percent: float = 0.0
    """Use of the file system of its data directory."""
    connections: int = 0
    """Connections of clients."""
    leader: int | None = None
    """The node that leads, as far as this one knows; None also from a release that does not say."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one member's findings here: if it answers, and the age of its last answer."""

    node: int
    answers: bool
    """Its HTTP API answered when it was last asked."""
    age_ms: int | None
    """Milliseconds since it last answered; None: never."""


def node_object(node: int) -> str:
    """The object of a finding about a node."""
    return f"node {node}"


def link_object(node: int, peer: int) -> str:
    """Returns the object of a finding about the link between two nodes; the same on both sides."""
    return f"link {min(node, peer)}-{max(node, peer)}"
