"""Defines the bodies of the HTTP API under /v1/consistency and /v1/repair: the data by which nodes are compared."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cluster.runtime.request_limits import Unsigned63
from cluster.state.recovery_views import DamageView

CHUNKS_MAX = 4096
SPAN_MAX = 64 << 20


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning and the end of a node's log, its commit index and its damage."""

    first_index: int
    first_position: int
    last_index: int
    end_position: int
    commit_index: int
    damage: list[DamageView]


class ConsistencyView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/consistency` and to `GET /v1/consistency/{index}`."""

    node: int
    applied_index: int
    fenced: bool
    log: LogView
    index: int
    """The marker to which `sums` belong; -1 if the node remembers none."""
    sums: dict[str, str]
    """Family of rows -> sum of its rows, hexadecimal; empty if the node does not remember that marker (yet)."""


class MarkView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `POST /v1/consistency`: the entry at which each node that applies it remembers its sums."""

    node: int
    term: int
    index: int


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/consistency/entries/{index}`: one entry of the log. Nodes with equal `header_crc` have
    equal logs up to this entry."""

    node: int
    index: int
    term: int
    position: int
    end_position: int
    header_crc: str


class ChunksRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/consistency/log`, which asks for the checksums of the log from `position` to
    `end_position`, one for each chunk. The request changes nothing."""

    position: Unsigned63
    end_position: Unsigned63
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=SPAN_MAX)] = 1 << 20


class ChunksView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `POST /v1/consistency/log`: the CRC-32C of each chunk as read from disk, hexadecimal; null where
    the bytes cannot be read."""

    node: int
    position: int
    chunk_bytes: int
    crcs: list[str | None]


class RepairView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/repair` and `POST /v1/repair`: the damage of this node, and the peers that can help."""

    node: int
    leader: int | None
    damage: list[DamageView]
    damaged_bytes: int
    vote_withheld: bool
    fenced: bool
    peers: list[int]
    """Other nodes that can be reached now."""
