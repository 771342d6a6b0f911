"""/v1/links: the links to the other nodes; /v1/config/reload: reads the configuration again."""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster.admin.call import Call
from cluster.admin.errors import ApiError
from cluster.config.config import ConfigError
from cluster.config.reload import ReloadView
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


async def reload_config(call: Call) -> ReloadView:
    """Reads the configuration again; an invalid one changes nothing."""
    try:
        return call.port.reload()
    except ConfigError as error:
        raise ApiError("refused", f"{error.what}; {error.why}; nothing was changed", error.fix) from None
