"""The rights that the routes of the HTTP API need: on which topics, groups or cluster, and which actions suffice.

Every route names one of these (`cluster.admin.route`); there is no default. A route that changes the cluster itself, or
shows stored bytes regardless of the rules of a topic, needs a Super (an administrator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cluster.broker.rights import READ, group_need, topic_need
from statemachine.access.rules import Action, Kind, Need

GET, LIST = (Action.GET,), (Action.LIST,)
DELETE, UPDATE = (Action.DELETE,), (Action.UPDATE,)
MAKE = (Action.CREATE, Action.UPDATE)
Params = Mapping[str, str]


class Needs(NamedTuple):
    """The rights that one route needs."""

    says: str
    """The text for docs/access-table.md."""
    of: Callable[[Params, Any, str], Iterator[Need]] | None
    """(parameters in the path, body, name of the cluster) -> needs, all of which must be met; None if only a Super may
    use the route."""
    reads_body: bool = False
    """True if `of` uses the body, so that the request is judged after it was decoded."""
    is_open: bool = False
    """True if the caller need not be identified."""
    always: bool = False
    """True if the caller is judged in every `auth.mode`."""
    named: bool = False
    """True if an open route is told the caller's identity."""
    stored: str = ""
    """The rights that the handler asks for once it has found what is stored, in words for docs/access-table.md."""


def _nothing(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield from ()


def _cluster(actions: tuple[Action, ...]) -> Callable[[Params, Any, str], Iterator[Need]]:
    def needs(params: Params, body: Any, cluster: str) -> Iterator[Need]:
        yield Need(Kind.CLUSTER, cluster, actions)

    return needs


def _named(of: Callable[[str, tuple[Action, ...]], Need], actions: tuple[Action, ...]) -> Any:
    def needs(params: Params, body: Any, cluster: str) -> Iterator[Need]:
        yield of(params["name"], actions)

    return needs


def _of_new_topic(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield topic_need(body.name, MAKE)


def _of_new_group(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield group_need(body.name, MAKE)


def _of_clone(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield group_need(body.source, GET)
    yield group_need(params["name"], UPDATE)
    if body.topic is not None:
        yield topic_need(body.topic, UPDATE)


def _of_reset(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield group_need(params["name"], UPDATE)
    yield topic_need(body.topic, UPDATE)


OPEN: Final = Needs("open to everybody", _nothing, is_open=True)
ASKED: Final = Needs("open to everybody", _nothing, is_open=True, named=True)
SECRET: Final = Needs("a proof of the cluster's secret in the request", _nothing, is_open=True)
SUPER: Final = Needs("a Super", None)
USERS: Final = Needs("a Super, in every mode", None, always=True)
SELF: Final = Needs("a Super, or the user whose token it is, in every mode", _nothing, always=True)
STORED: Final = Needs("any user", _nothing, stored="Sub or Get on the topic of the message's row")
CLUSTER_GET: Final = Needs("Get on Cluster:{cluster}", _cluster(GET))
CLUSTER_LIST: Final = Needs("List on Cluster:{cluster}", _cluster(LIST))
CLUSTER_UPDATE: Final = Needs("Update on Cluster:{cluster}", _cluster(UPDATE))
TOPIC_GET: Final = Needs("Get on Topic:{name}", _named(topic_need, GET))
TOPIC_READ: Final = Needs("Sub or Get on Topic:{name}", _named(topic_need, READ))
TOPIC_DELETE: Final = Needs("Delete on Topic:{name}", _named(topic_need, DELETE))
TOPIC_MAKE: Final = Needs("Create or Update on Topic:{name}", _of_new_topic, reads_body=True)
GROUP_GET: Final = Needs("Get on Group:{name}", _named(group_need, GET))
GROUP_DELETE: Final = Needs("Delete on Group:{name}", _named(group_need, DELETE))
GROUP_MAKE: Final = Needs("Create or Update on Group:{name}", _of_new_group, reads_body=True)
GROUP_CLONE: Final = Needs(
    "Get on Group:{source}; Update on Group:{name}; Update on Topic:{topic}, if one is named",
    _of_clone,
    reads_body=True,
)
GROUP_RESET: Final = Needs("Update on Group:{name}; Update on Topic:{topic}", _of_reset, reads_body=True)
