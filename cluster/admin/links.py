"""/v1/links: the links to the other nodes."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Call
from cluster.peer.links import LinkView


class LinksView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/links`."""

    node: int
    consistency: Literal["local"] = "local"
    leader: int | None
    links: list[LinkView]


async def get_links(call: Call) -> LinksView:
    """State, age and reason of this node's link to each other node."""
    return LinksView(
        node=call.port.config.node.id, leader=call.port.services.leader_id() or None, links=call.port.links.view()
    )
