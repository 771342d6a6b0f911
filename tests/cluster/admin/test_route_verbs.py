"""A route that is an act of a verb is judged by that verb's row: both fronts need the same rights for the same act."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.admin.handler_request import Raw
from cluster.admin.openapi import document
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.route import CALLER_CHOOSES, CONSTANT, HAS_SECRET, Route
from cluster.admin.route_rights import CLUSTER_GET, of_verb
from cluster.admin.routes import ROUTES
from cluster.requests.judge import needs_of
from cluster.requests.table import VERBS
from cluster.requests.verb import Serves
from raftlog.types import NodeId
from raftmq_wire.codes import RequestCode as Code
from tests.support.rows import each_row

SCRIPT = Path(__file__).parents[3] / ".ci" / "access_table.py"
ACTS = {
    "POST /v1/topics": Code.UPDATE_AND_CREATE_TOPIC,
    "GET /v1/topics": Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    "GET /v1/topics/{name}": Code.GET_TOPIC_CONFIG,
    "DELETE /v1/topics/{name}": Code.DELETE_TOPIC_IN_BROKER,
    "GET /v1/groups": Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "GET /v1/groups/{name}": Code.GET_CONSUME_STATS,
    "POST /v1/groups": Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    "DELETE /v1/groups/{name}": Code.DELETE_SUBSCRIPTIONGROUP,
    "POST /v1/groups/{name}/clone": Code.CLONE_GROUP_OFFSET,
    "POST /v1/groups/{name}/reset": Code.INVOKE_BROKER_TO_RESET_OFFSET,
    "GET /v1/topics/{name}/messages/{key}": Code.QUERY_MESSAGE,
    "GET /v1/messages/{position}": Code.VIEW_MESSAGE_BY_ID,
    "POST /v1/writes/abort": Code.ABORT_WRITE,
    "GET /v1/config": Code.GET_BROKER_CONFIG,
    "GET /v1/status": Code.GET_BROKER_RUNTIME_INFO,
    "GET /v1/users": Code.AUTH_LIST_USER,
    "POST /v1/users": Code.AUTH_CREATE_USER,
    "PUT /v1/users/{user}": Code.AUTH_UPDATE_USER,
    "DELETE /v1/users/{user}": Code.AUTH_DELETE_USER,
    "GET /v1/acl/{user}": Code.AUTH_GET_ACL,
    "PUT /v1/acl/{user}": Code.AUTH_UPDATE_ACL,
    "DELETE /v1/acl/{user}": Code.AUTH_DELETE_ACL,
    "PUT /v1/auth": Code.SET_AUTH_MODE,
}
"""Route -> the request code of which it is the act, by hand: a route that names another code has other rights."""
PAGES = "GET /v1/topics/{name}/queues/{queue}/messages"
"""The only route about a topic or a group that is the act of no verb: a pull is made by a consumer of a group."""
BY_NAME = {f"{route.method} {route.path}": route for route in ROUTES}


def without_names(says: str) -> str:
    return re.sub(r"{\w+}", "{}", says).removesuffix(", in every mode")


def test_each_act_has_the_rights_of_its_verb() -> None:
    assert {name: route.needs.verb for name, route in BY_NAME.items() if route.needs.verb} == ACTS
    needs = {code: says for code, _, says, _ in runpy.run_path(str(SCRIPT))["code_rows"]()}
    for name, code in ACTS.items():
        assert without_names(BY_NAME[name].needs.says) == without_names(needs[code]), name


def test_what_is_about_topics_and_groups_is_the_act_of_a_verb() -> None:
    about = {name for name, route in BY_NAME.items() if re.search("(Topic|Group):", route.needs.says)}
    assert about - ACTS.keys() == {PAGES}


def test_what_changes_something_is_the_act_of_a_verb_that_does() -> None:
    """The rights of a read would let in more users, and those of a change fewer."""
    assert [name for name, code in ACTS.items() if name.startswith("GET ") is VERBS[code].is_write] == []


DIFFERENT = {
    (Serves.READ, Serves.ANY): CALLER_CHOOSES,
    (Serves.READ, Serves.IF_KNOWN): CALLER_CHOOSES,
    (Serves.READ, Serves.OWN_ROWS): CALLER_CHOOSES,
    (Serves.READ, Serves.CONFIRMED): CALLER_CHOOSES,
    (Serves.LEADER_ALONE, Serves.LEADER): HAS_SECRET,
}
"""(route, verb): other nodes answer the act over HTTP than on the clients' ports -> why."""


def test_an_act_is_answered_by_the_same_nodes_through_both_fronts_or_says_why_not() -> None:
    found = {name: (BY_NAME[name].serves, VERBS[code].serves) for name, code in ACTS.items()}
    told = {name: DIFFERENT[both] for name, both in found.items() if both[0] is not both[1]}
    assert {name: route.because for name, route in BY_NAME.items() if route.because} == told


async def nothing(call: Any) -> Any:
    """Nothing."""


@each_row(
    ("needs", "more", "says"),
    [
        (CLUSTER_GET, {}, "no verb"),
        (of_verb(Code.GET_TOPIC_CONFIG, topic="name"), {}, "by whom"),
        (of_verb(Code.ABORT_WRITE, name="name"), {"serves": Serves.ANY}, "say why"),
        (of_verb(Code.ABORT_WRITE, name="name"), {"serves": Serves.LEADER, "because": "so"}, "say why"),
        (of_verb(Code.ABORT_WRITE, name="name"), {"serves": Serves.LEADER}, "say why"),
        (of_verb(Code.ABORT_WRITE, name="name"), {"because": "so"}, "say why"),
    ],
)
def test_a_route_does_not_differ_from_its_row_without_a_reason(needs: Any, more: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Route.of_verb("POST", "/v1/x/{name}", nothing, "text/plain", CONSTANT, needs, **more)


async def reached(call: Any) -> Raw:
    """What a confirmed leader says."""
    assert call.consistency == "linearizable"
    return Raw("text/plain", b"reached")


CONFIRMED = Route.of_verb(
    "GET", "/v1/x/{name}", reached, "text/plain", CONSTANT, of_verb(Code.GET_MAX_OFFSET, topic="name")
)


SETTLED = Route.of_verb(
    "GET",
    "/v1/y/{group}",
    reached,
    "text/plain",
    CONSTANT,
    of_verb(Code.GET_CONSUME_STATS, consumerGroup="group"),
)


@pytest.fixture
async def x(node: Any, serve: Any) -> Any:
    return await serve(node, (CONFIRMED, SETTLED))


async def test_a_confirmed_route_is_answered_after_a_majority_confirmed(x: Any, node: Any) -> None:
    assert CONFIRMED.serves is Serves.CONFIRMED
    assert await (await x.get("/v1/x/T")).text() == "reached"
    assert node.reads_confirmed == 1
    assert (await x.get("/v1/x/T?consistency=local")).status == 400, "it cannot be asked for less"
    node.confirms = False
    error = (await (await x.get("/v1/x/T")).json())["error"]
    assert error["code"] == "no_leader"
    assert "local" not in error["hint"]


async def test_a_route_waits_for_the_commits_that_its_verb_waits_for(x: Any, node: Any) -> None:
    asked: list[str] = []

    def settle(group: str, done: Any) -> None:
        asked.append(f"{group}, {node.reads_confirmed} confirmed")
        done()

    node.settle_offsets = settle
    assert await (await x.get("/v1/y/billing")).text() == "reached"
    assert (await x.get("/v1/x/T")).status == 200, "which reads no offsets"
    assert asked == ["billing, 0 confirmed"]
    assert node.reads_confirmed == 2


async def test_commits_that_never_end_do_not_send_to_a_local_answer(make_node: Any, serve: Any) -> None:
    """A confirmed route has none."""
    node = make_node(1, send__deadline_ms=20, send__leader_wait_ms=20)
    node.settle_offsets = lambda group, done: None
    error = (await (await (await serve(node, (SETTLED,))).get("/v1/y/billing")).json())["error"]
    assert (error["code"], "local" in error["hint"]) == ("no_leader", False)


async def test_a_follower_passes_a_confirmed_route_on(x: Any, node: Any) -> None:
    node.leader = NodeId(2)
    assert (await (await x.get("/v1/x/T")).json())["error"]["code"] == "leader_unreachable"
    assert node.reads_confirmed == 0


@pytest.mark.parametrize("serves", [Serves.LEADER, Serves.CONFIRMED])
def test_what_the_leader_answers_may_be_a_redirect_in_the_document(serves: Serves) -> None:
    def operation(route: Route) -> Any:
        return document((*ROUTES, route))["paths"][route.path]["get"]

    told, other = operation(CONFIRMED._replace(serves=serves)), operation(CONFIRMED._replace(serves=Serves.ANY))
    assert [each["name"] for each in told["parameters"]] == ["name", BROKER_GROUP, "Prefer"]
    assert "307" in told["responses"]
    assert [each["name"] for each in other["parameters"]] == ["name", BROKER_GROUP]
    assert "307" not in other["responses"]


@pytest.mark.parametrize("params", [{}, {"groupName": "mine"}, {"body.name": "mine"}])
def test_a_group_that_the_verb_names_in_its_body_is_named_nowhere_else(params: dict[str, str]) -> None:
    """A field of the header must never stand in for what the body names."""
    needs = BY_NAME["POST /v1/groups"].needs
    assert needs.of is not None
    assert needs.reads_body
    (need,) = needs.of(params, SimpleNamespace(name="theirs"), "C")
    assert str(need) == "Create or Update on Group:theirs"
    assert needs_of(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, params, b'{"groupName":"theirs"}', "C") == [need]


@each_row(
    ("code", "fields"),
    [
        (Code.UPDATE_AND_CREATE_TOPIC, {}),
        (Code.UPDATE_AND_CREATE_TOPIC, {"topics": "name"}),
        (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "name", "group": "body.group"}),
        (Code.CLONE_GROUP_OFFSET, {"srcGroup": "body.source", "destGroup": "name"}),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "body.name"}),
        (Code.GET_CONSUME_STATS, {"topic": "name"}),
    ],
)
def test_a_route_that_gives_the_row_other_names_is_not_made(code: int, fields: dict[str, Any]) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        of_verb(code, **fields)


def test_a_body_with_other_names_judges_nothing() -> None:
    with pytest.raises(ValueError, match="does not judge by"):
        of_verb(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, reads_body=True, group_nam="body.name")
