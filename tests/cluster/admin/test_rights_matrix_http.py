"""Every route that takes a name, position, key or id, called with a thing of another user and with one that does not
exist: both get the same answer, and nothing is read.

How a route is judged follows from its rights, but for what is kept by hand: the routes that are not judged by what they
name, those for a Super alone, and those that are judged by what is stored. So a route that takes a name and asks for
nothing on it fails here.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cluster.admin.route import CONSTANT, Route
from cluster.admin.route_rights import Needs, of_verb
from cluster.admin.routes import ROUTES
from cluster.requests.verb import Serves
from jepsen_like.marks import mark_of
from raftmq_wire.codes import RequestCode as Code
from statemachine.access.rules import Kind
from statemachine.consuming.groups import PutGroup
from statemachine.topics.topics import CreateTopic

CLUSTER = "Get or Update on the cluster: it shows nothing of one user"
OPEN = "nothing"
TOKEN = "whose token it is (test_users_http.py)"
NOT_BY_NAME = {
    "GET /v1/members/{id}/clients": CLUSTER,
    "GET /v1/members/{id}/status": CLUSTER,
    "GET /v1/members/{id}/events": CLUSTER,
    "GET /v1/members/{id}/can-stop": CLUSTER,
    "GET /v1/members/{id}/consistency": CLUSTER,
    "GET /v1/members/{id}/consistency/{index}": CLUSTER,
    "GET /v1/consistency/{index}": CLUSTER,
    "GET /v1/members/{id}/history": CLUSTER,
    "GET /v1/broker-groups/{group}/drain": CLUSTER,
    "POST /v1/alarms/{key}/ack": CLUSTER,
    "POST /v1/members/claims": OPEN,
    "POST /v1/session": OPEN,
    "GET /static/{file}": OPEN,
    "POST /v1/tokens": TOKEN,
    "PUT /v1/tokens/{token}": TOKEN,
    "DELETE /v1/tokens/{token}": TOKEN,
}
"""Routes that take a name and are not judged by it, though others than a Super may use them -> why."""
SUPER = {
    "DELETE /v1/clients/{address}",
    "PUT /v1/log-level",
    "DELETE /v1/members/{id}/clients/{address}",
    "PUT /v1/failpoints",
    "PUT /v1/config",
    "POST /v1/upgrade/finalize",
    "POST /v1/broker-groups",
    "POST /v1/broker-groups/{group}/drain",
    "DELETE /v1/broker-groups/{group}/drain",
    "POST /v1/broker-groups/{group}/retire",
    "POST /v1/writes/forget",
    "POST /v1/members",
    "POST /v1/members/{id}/promote",
    "DELETE /v1/members/{id}",
    "POST /v1/members/{id}/drain",
    "POST /v1/members/{id}/maintenance",
    "POST /v1/leader/transfer",
    "GET /v1/consistency/entries/{index}",
    "POST /v1/consistency/log",
    "POST /v1/metadata",
    "POST /v1/backup",
    "POST /v1/tier/scrub",
    "PUT /v1/quotas",
    "DELETE /v1/quotas/{subject}",
    "PUT /v1/quotas/learnt",
    "PUT /v1/quotas/learnt/{digest}",
    "POST /v1/users",
    "PUT /v1/users/{user}",
    "DELETE /v1/users/{user}",
    "POST /v1/acl/test",
    "GET /v1/acl/{user}",
    "PUT /v1/acl/{user}",
    "DELETE /v1/acl/{user}",
    "PUT /v1/auth",
    "PUT /v1/auth/key",
}
"""Routes for a Super alone."""
STORED = {
    "GET /v1/topics/{name}/messages/{key}",
    "GET /v1/topics/{name}/queues/{queue}/messages",
    "GET /v1/messages/{position}",
    "POST /v1/groups/{name}/clone",
}
"""Routes that are judged by what is stored, too: each has requests of its own below."""
TAKE = {f"{each.method} {each.path}": each for each in ROUTES if "{" in each.path or each.body}
"""Every route that takes something."""
NAMED = {name for name, each in TAKE.items() if re.search("(Topic|Group):", each.needs.says)} - STORED
KINDS = {Kind.TOPIC: "topic", Kind.GROUP: "group"}
NUMBERS = {"queue": "0"}
"""Parameters of paths that are no names -> a value."""
KEY = "vic-key"
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/topics": {"name": "vic-topic"},
    "POST /v1/groups": {"name": "vic-group"},
    "POST /v1/groups/{name}/reset": {"topic": "vic-topic", "to": "earliest"},
    "POST /v1/writes/abort": {"name": "vic-group", "write": 0},
}


@pytest.fixture
def world(make_node: Any) -> tuple[Any, str, int]:
    """A node with a message of vic in a topic and among the dead letters of a group; mal's token; the position."""
    node = make_node()
    node.consistency = SimpleNamespace(fenced=False)
    for topic in ("vic-topic", "mal-topic", "%DLQ%vic-group", "%RETRY%vic-group"):
        node.apply([CreateTopic({"name": topic}, True)])
    node.apply([PutGroup({"name": "vic-group"}, True)])
    position = node.add_message("vic-topic", mark_of("vic-topic"), KEY)
    node.add_message("%DLQ%vic-group", mark_of("vic-topic"), KEY)
    rules = (("Topic:mal-*", ["All"]), ("Group:mal-*", ["All"]), ("Cluster:DefaultCluster", ["All"]))
    token, node.super_token = node.add_user("mal", *rules), node.add_user("root", is_super=True)
    node.set_mode("enforce")
    return node, token, position


def test_every_route_that_takes_a_name_is_judged_by_it_or_by_more_or_is_a_supers() -> None:
    assert {name for name, each in TAKE.items() if each.needs.of is None} == SUPER
    assert {name for name, each in TAKE.items() if each.needs.of is not None} == NAMED | STORED | NOT_BY_NAME.keys()
    assert {name for name, each in TAKE.items() if each.needs.stored} <= STORED
    assert len(NAMED) >= 8


def path_of(route: Route, body: dict[str, Any] | None) -> str:
    """Returns the path of a request for things of vic: each parameter names a thing of the kind that it is judged as.
    Raises AssertionError if one is judged as nothing."""
    params = set(re.findall(r"{(\w+)}", route.path))
    given = None if route.body is None else msgspec.convert(body, route.body)
    assert route.needs.of is not None
    needs = [*route.needs.of({each: f"at-{each}" for each in params}, given, "C")]
    values = {each: f"vic-{KINDS[need.kind]}" for each in params for need in needs if need.name == f"at-{each}"}
    assert (unjudged := params - values.keys() - NUMBERS.keys()) == set(), f"{route.path} is not judged by {unjudged}"
    return route.path.format(**NUMBERS | values)


def planted(needs: Needs) -> Route:
    path, reader = "/v1/topics/{topic}/queues/{queue}/groups/{group}", cast("Any", None)
    return Route.of_verb("GET", path, reader, "text/plain", CONSTANT, needs, serves=Serves.ANY, because="planted")


def test_what_a_path_names_follows_from_its_rights() -> None:
    both = planted(of_verb(Code.QUERY_CONSUMER_OFFSET, topic="topic", consumerGroup="group"))
    assert path_of(both, None) == "/v1/topics/vic-topic/queues/0/groups/vic-group"
    with pytest.raises(AssertionError, match=r"not judged by .*group"):
        path_of(planted(of_verb(Code.GET_TOPIC_CONFIG, topic="topic")), None)


def requests_of(position: int) -> list[tuple[str, str, dict[str, Any] | None]]:
    """(method, path, body) of each request with things of vic."""
    found: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", f"/v1/messages/{position}", None),
        ("GET", f"/v1/topics/mal-topic/messages/{KEY}", None),
        ("GET", f"/v1/topics/vic-topic/messages/{KEY}", None),
        ("GET", "/v1/topics/%25DLQ%25vic-group/queues/0/messages", None),
        ("GET", "/v1/topics/vic-topic/queues/0/messages", None),
        ("GET", "/v1/topics/%25RETRY%25vic-group/queues/0/messages", None),
    ]
    clone = "/v1/groups/mal-group/clone"
    found += [("POST", clone, {"source": "vic-group", **more}) for more in ({}, {"topic": "vic-topic"})]
    named = [(TAKE[name], BODIES.get(name)) for name in sorted(NAMED)]
    return found + [(route.method, path_of(route, body), body) for route, body in named]


def renamed(body: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same body with names that do not exist."""
    return None if body is None else json.loads(json.dumps(body).replace("vic-", "nov-"))


async def test_things_of_others_are_as_good_as_things_of_nobody(world: tuple[Any, str, int], serve: Any) -> None:
    node, token, position = world
    client = await serve(node)
    before, wrong = node.state.applied.index, []
    for method, path, body in requests_of(position):
        other = path.replace("vic-", "nov-").replace(str(position), str(position + 3))
        forms = []
        for form, sent in ((path, body), (other, renamed(body))):
            got = await client.request(method, form, json=sent, headers={"Authorization": f"Bearer {token}"})
            text = await got.read()
            assert b"<<mark:" not in text, path
            forms.append((got.status, re.sub(rb"[a-z]+-(topic|group|key)|%d|%d" % (position, position + 3), b"", text)))
        if forms[0] != forms[1]:
            wrong.append((method, path, *forms))
    assert wrong == []
    assert node.state.applied.index == before
    got = await client.get(f"/v1/messages/{position}", headers={"Authorization": f"Bearer {node.super_token}"})
    assert b"<<mark:vic-topic>>" in await got.read(), "who may read it sees it"
