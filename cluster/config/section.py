"""Defines the base class of a table of raftmq.toml, and types that several tables use for their keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=1, le=65535)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]
NodeNumber = Annotated[int, Meta(ge=1, le=65535)]
NodeNumbers = Annotated[str, Meta(pattern=r"^([1-9][0-9]{0,4}(;[1-9][0-9]{0,4})*)?$")]
NonEmptyText = Annotated[str, Meta(min_length=1)]
ConfigUuid = Annotated[str, Meta(pattern=r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$")]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of raftmq.toml."""
