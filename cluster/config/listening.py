"""Which listener's addresses clients receive: its own, or those of the one that its key `routes` names."""

from __future__ import annotations

from collections.abc import Callable

from cluster.config.config import Config
from raftlog.types import NodeId


def own_address(config: Config) -> str:
    """The advertised address that message ids carry: the first listener's."""
    return config.listeners[0].advertised


def addresses_behind(
    config: Config, listener: str, advertised: Callable[[str], dict[NodeId, str]]
) -> dict[NodeId, str]:
    """Returns what is `advertised` of the listener, or of the one that it names as its `routes`."""
    return advertised(config.routed_by(listener))
