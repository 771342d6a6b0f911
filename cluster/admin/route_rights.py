"""The rights that the routes of the HTTP API need: on which topics, groups or cluster, and which actions suffice.

Every route names one of these (`cluster.admin.route`); there is no default. A route that is an act of a verb has the
rights of that verb's row (`of_verb`), so that both fronts judge it alike. The other rights are written here. A route
that changes the cluster itself, or shows stored bytes regardless of the rules of a topic, needs a Super (an
administrator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cluster.broker.rights import READ, topic_need
from cluster.requests.table import VERBS
from cluster.requests.verb import NamedRights
from cluster.runtime import metered_json
from statemachine.access.rules import Action, Kind, Need

Params = Mapping[str, str]
OF_BODY: Final = "body."
"""Begins the place of a name that stands in the body of the request, rather than in its path."""


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
    verb: int = 0
    """The request code of the verb in whose row they stand; 0 if no verb does the same."""
    settles: str = ""
    """The place of the group's name whose offsets the verb reads (`Verb.settles`); "" if it reads none."""

    def settled(self, params: Params, body: Any) -> str:
        """Returns the group of which every commit is applied or lost before a confirmed read; "" for none."""
        return (_at(self.settles, params, body) or "") if self.settles else ""


def of_verb(code: int, *, reads_body: bool = False, **fields: str) -> Needs:
    """Returns the rights that a route needs which performs a verb, from the verb's row.

    `fields`: field of the verb -> the place of its value, a parameter of the path ("name") or a field of the body
    ("body.topic"), which may be null there. `reads_body`: the row reads these fields from the verb's body, and nothing
    else may stand in for them. Raises ValueError if the row does not need exactly these fields, because a missing name
    would count as "". It also does so if the row reads offsets of a group that is not among them.
    """
    verb = VERBS[code]
    names = verb.names
    if verb.settles and verb.settles not in fields:
        raise ValueError(f"the row of request code {code} settles the offsets of a {verb.settles}: say where it stands")
    settles = fields.get(verb.settles, "")
    if names is None:
        return Needs("a Super, in every mode", None, always=True, verb=code, settles=settles)

    def needs(params: Params, body: Any, cluster: str) -> Iterator[Need]:
        found = {field: value for field, place in fields.items() if (value := _at(place, params, body)) is not None}
        yield from names({}, metered_json.encode(found), cluster) if reads_body else names(found, b"", cluster)

    return Needs(
        _in_words(code, names, fields, reads_body),
        needs,
        reads_body=any(place.startswith(OF_BODY) for place in fields.values()),
        stored=verb.stored,
        verb=code,
        settles=settles,
    )


def _at(place: str, params: Params, body: Any) -> str | None:
    value: str | None = getattr(body, place.removeprefix(OF_BODY)) if place.startswith(OF_BODY) else params[place]
    return value


class _Given(dict[str, str]):
    """The fields that a route gives; to ask for another one is an error."""

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the field. Raises ValueError for another one."""
        if name not in self:
            raise ValueError(f"the row asks for the field {name}, which the route does not give")
        return self[name]


def _in_words(code: int, names: NamedRights, fields: Mapping[str, str], reads_body: bool) -> str:
    """Returns the needs of the row, with the route's own names in braces."""
    shown = _Given({field: f"{{{place.removeprefix(OF_BODY)}}}" for field, place in fields.items()})
    ext, body = (_Given(), metered_json.encode(dict(shown))) if reads_body else (shown, b"")
    says = "; ".join(map(str, names(ext, body, "{cluster}"))) or "any user"
    if unread := [field for field, place in shown.items() if place not in says]:
        raise ValueError(f"the row of request code {code} does not judge by {unread}")
    return says


def _nothing(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield from ()


def _cluster(action: Action) -> Callable[[Params, Any, str], Iterator[Need]]:
    def needs(params: Params, body: Any, cluster: str) -> Iterator[Need]:
        yield Need(Kind.CLUSTER, cluster, (action,))

    return needs


def _of_pages(params: Params, body: Any, cluster: str) -> Iterator[Need]:
    yield topic_need(params["name"], READ)


OPEN: Final = Needs("open to everybody", _nothing, is_open=True)
ASKED: Final = Needs("open to everybody", _nothing, is_open=True, named=True)
SECRET: Final = Needs("a proof of the cluster's secret in the request", _nothing, is_open=True)
SUPER: Final = Needs("a Super", None)
USERS: Final = Needs("a Super, in every mode", None, always=True)
SELF: Final = Needs("a Super, or the user whose token it is, in every mode", _nothing, always=True)
CLUSTER_GET: Final = Needs("Get on Cluster:{cluster}", _cluster(Action.GET))
CLUSTER_UPDATE: Final = Needs("Update on Cluster:{cluster}", _cluster(Action.UPDATE))
PAGES: Final = Needs("Sub or Get on Topic:{name}", _of_pages)
