"""A route that is an act of a verb is judged by that verb's row: both fronts need the same rights for the same act."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.admin.route_rights import of_verb
from cluster.admin.routes import ROUTES
from cluster.requests.judge import needs_of
from raftmq_wire.codes import RequestCode as Code

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


@pytest.mark.parametrize("params", [{}, {"groupName": "mine"}, {"body.name": "mine"}])
def test_a_group_that_the_verb_names_in_its_body_is_named_nowhere_else(params: dict[str, str]) -> None:
    """A field of the header must never stand in for what the body names."""
    needs = BY_NAME["POST /v1/groups"].needs
    assert needs.of is not None
    assert needs.reads_body
    (need,) = needs.of(params, SimpleNamespace(name="theirs"), "C")
    assert str(need) == "Create or Update on Group:theirs"
    assert needs_of(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, params, b'{"groupName":"theirs"}', "C") == [need]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Code.UPDATE_AND_CREATE_TOPIC, {}),
        (Code.UPDATE_AND_CREATE_TOPIC, {"topics": "name"}),
        (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "name", "group": "body.group"}),
        (Code.CLONE_GROUP_OFFSET, {"srcGroup": "body.source", "destGroup": "name"}),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "body.name"}),
    ],
)
def test_a_route_that_gives_the_row_other_names_is_not_made(code: int, fields: dict[str, Any]) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        of_verb(code, **fields)


def test_a_body_with_other_names_judges_nothing() -> None:
    with pytest.raises(ValueError, match="does not judge by"):
        of_verb(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, reads_body=True, group_nam="body.name")
