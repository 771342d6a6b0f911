"""Which listener's addresses clients receive: the brokers', also in answers of the name server."""

from __future__ import annotations

from collections.abc import Callable

from cluster.config.config import Config
from raftlog.types import NodeId

NAME_SERVER_LISTENER = "namesrv"
BROKER_LISTENER = "broker"


def own_address(config: Config) -> str:
    """The advertised address that message ids carry: the broker listener's, else the first one's."""
    listeners = config.listeners
    chosen = next((one for one in listeners if one.name == BROKER_LISTENER), listeners[0])
    return chosen.advertised


def addresses_behind(listener: str, advertised: Callable[[str], dict[NodeId, str]]) -> dict[NodeId, str]:
    """Returns what is `advertised` of the listener. A name server's ("namesrv...") answers with its twin's
    ("broker...")."""
    if listener.startswith(NAME_SERVER_LISTENER):
        twin = advertised(BROKER_LISTENER + listener.removeprefix(NAME_SERVER_LISTENER))
        if twin:
            return twin
    return advertised(listener)
