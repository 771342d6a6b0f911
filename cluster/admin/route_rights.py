"""Defines the rights that the routes of the HTTP API need: on which topics, groups or cluster, and for which actions.

Every route names one of these (`cluster.admin.route`); there is no default. A route that does the same as a verb, a
request code of the clients' ports, needs the rights in that verb's row (`of_verb`), so that both ports judge alike. The
other rights are written here. A route that changes the cluster itself, or shows stored bytes whatever the rules of a
topic say, needs a Super (an administrator).
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
"""Prefix of the place of a name that is in the request's body. The name of the body's field follows."""


class Needs(NamedTuple):
    """The rights that one route needs."""

    says: str
    """The text for docs/access-table.md."""
    of: Callable[[Params, Any, str], Iterator[Need]] | None
    """Called with (parameters in the path, body, name of the cluster); yields the rights, all of which the caller
    needs. None if only a Super may use the route."""
    reads_body: bool = False
    """True if `of` uses the body. The request is then judged after its body was decoded."""
    is_open: bool = False
    """True if the caller need not be identified."""
    always: bool = False
    """True if the caller is judged in every `auth.mode`, even in `off`."""
    named: bool = False
    """True if the handler of an open route gets the caller's identity, when the request has one."""
    stored: str = ""
    """The rights that the handler checks after it has found what is stored, as a text for docs/access-table.md; "" if
    none."""
    verb: int = 0
    """The request code of the verb in whose row the rights are; 0 if no verb does the same."""
    settles: str = ""
    """The place of the name of the consumer group whose offsets the verb reads (`Verb.settles`); "" if it reads
    none."""

    def settled(self, params: Params, body: Any) -> str:
        """Returns the name of the consumer group whose earlier commits must be applied or lost before a confirmed read;
        "" for none."""
        return (_at(self.settles, params, body) or "") if self.settles else ""


def of_verb(code: int, *, reads_body: bool = False, **fields: str) -> Needs:
    """Returns the rights of a route that does the same as the verb with this request code, from the verb's row.

    `fields`: field of the verb -> place of its value. A place is a parameter of the path, such as "name", or a field of
    the body, such as "body.topic", which may be null. `reads_body`: the row reads the fields from the verb's body
    instead of its header. Raises ValueError if the row does not need exactly these fields, because a missing name would
    count as "". Also raises it if the row reads offsets of a group and `fields` does not have that group.
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
    """The fields that a route gives to a verb's row. If the row asks for another one, that is an error."""

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field. Raises ValueError if the route does not give the field."""
        if name not in self:
            raise ValueError(f"the row asks for the field {name}, which the route does not give")
        return self[name]


def _in_words(code: int, names: NamedRights, fields: Mapping[str, str], reads_body: bool) -> str:
    """Returns the rights of the verb's row as a text, with the route's own parameter names in braces. Raises ValueError
    if the row does not need exactly the given fields."""
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
