"""/v1/acl: the rules of a user, and a test of their effect."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.errors import ApiError
from cluster.admin.handler_request import Call, ReadView
from cluster.admin.handlers.access.awaited_change import changed, user_of
from cluster.admin.pagination import Page
from cluster.admin.route import Route
from cluster.admin.streamed_json import Pieces
from cluster.requests.verb import Serves
from cluster.runtime.request_limits import Word
from raftmq_wire.codes import RequestCode
from statemachine.access.access_decision import Allowed, judge
from statemachine.access.rules import (
    ACTION_NAMES,
    RESOURCE_LENGTH_MAX,
    RULES_OF_USER_MAX,
    SOURCES_MAX,
    Kind,
    Need,
    Pattern,
    Policy,
    Rule,
    parse_actions,
    parse_resource,
)
from statemachine.commands import InvalidCommandError

RULES_BYTES_MAX: Final = 8 << 20
"""The most bytes of JSON in an answer with all rules of a user."""
POLICY, RESOURCE = "policy", "resource"
PolicyName = Literal["Custom", "Default"]
_POLICIES: Final = {"Custom": Policy.CUSTOM, "Default": Policy.DEFAULT}
ResourceText = Annotated[str, msgspec.Meta(min_length=1, max_length=RESOURCE_LENGTH_MAX)]
Actions = Annotated[list[Word], msgspec.Meta(min_length=1, max_length=len(ACTION_NAMES))]


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a user."""

    resource: ResourceText
    actions: Actions
    decision: Literal["Allow", "Deny"] = "Allow"
    sources: Annotated[list[Word], msgspec.Meta(max_length=SOURCES_MAX)] = []
    """IP addresses and networks of clients to which the rule applies; [] for every client."""
    policy: PolicyName = "Custom"


class RulesView(ReadView, frozen=True, kw_only=True):
    """The answer to `GET /v1/acl/{user}`."""

    user: str
    rules: list[RuleView]


class RulesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/acl/{user}`: each rule replaces the one with the same policy and resource."""

    rules: Annotated[list[RuleView], msgspec.Meta(min_length=1, max_length=RULES_OF_USER_MAX)]


class RulesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer after a change of rules. `rules` is the number of rules that the user has now."""

    node: int
    user: str
    rules: int


class TestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/acl/test`: may the user do the action on the resource, from the address?"""

    user: Annotated[str, msgspec.Meta(max_length=64)]
    resource: ResourceText
    action: Word
    address: Word = "127.0.0.1"
    """The IP address from which the client would send the request."""


class TestView(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of this node's rules: if the user is allowed to, and why not."""

    node: int
    user: str
    allowed: bool
    why: str


async def get_rules(call: Call) -> Pieces:
    """Lists all rules of a user."""
    applied, user = call.port.state.applied.index, await user_of(call, call.params["user"])
    page = Page(call, RULES_OF_USER_MAX, RULES_BYTES_MAX)
    for rule in user.rules:
        await page.turn()
        page.add(_view(rule))
    view = RulesView(
        node=call.port.config.node.id,
        consistency=call.consistency,
        applied_index=applied,
        user=user.name,
        rules=[],
    )
    return page.answer(view, "rules")


async def set_rules(call: Call) -> RulesChanged:
    """Adds rules to a user; each replaces the rule with the same policy and resource."""
    wanted: RulesRequest = call.body
    user, access = await user_of(call, call.params["user"]), call.port.access
    rows = [
        (int(_POLICIES[rule.policy]), rule.resource, rule.actions, rule.sources, rule.decision == "Allow")
        for rule in wanted.rules
    ]
    asker = access.asker(call.caller)
    await changed(lambda done: access.users.set_rules(asker, user.name, rows, done), "raftmq acl list")
    return _now(call, user.name)


async def remove_rules(call: Call) -> RulesChanged:
    """Removes one rule of a user, or all of them.

    ?resource= and ?policy= name the rule; the policy is Custom if only the resource is given. Without both, all rules
    are removed.
    """
    policy, resource = call.query.get(POLICY), call.query.get(RESOURCE)
    if policy is not None and policy not in _POLICIES:
        raise ApiError("bad_query", f"policy cannot be {policy[:64]}", "use Custom or Default")
    user, access = await user_of(call, call.params["user"]), call.port.access
    number = int(_POLICIES[policy or "Custom"]) if policy or resource else None
    asker = access.asker(call.caller)
    await changed(
        lambda done: access.users.remove_rules(asker, user.name, number, resource or None, done), "raftmq acl list"
    )
    return _now(call, user.name)


async def test_rules(call: Call) -> TestView:
    """Says if a user may do one action on one resource; nothing else happens."""
    wanted: TestRequest = call.body
    user = await user_of(call, wanted.user)
    try:
        resource = parse_resource(wanted.resource)
        (action,) = parse_actions([wanted.action])
    except InvalidCommandError as error:
        raise ApiError("bad_field", str(error), "such as Topic:orders and Pub") from None
    if resource.kind is Kind.ANY or resource.pattern is not Pattern.LITERAL:
        raise ApiError("bad_field", f"{wanted.resource} names no single resource", "such as Topic:orders")
    verdict = judge(user, wanted.address, [Need(resource.kind, resource.name, (action,))])
    allowed = isinstance(verdict, Allowed)
    why = "" if isinstance(verdict, Allowed) else verdict.reason
    return TestView(node=call.port.config.node.id, user=user.name, allowed=allowed, why=why)


def _view(rule: Rule) -> RuleView:
    return RuleView(
        resource=str(rule.resource),
        actions=[ACTION_NAMES[action] for action in sorted(rule.actions)],
        decision="Allow" if rule.allow else "Deny",
        sources=list(rule.sources),
        policy="Custom" if rule.policy is Policy.CUSTOM else "Default",
    )


def _now(call: Call, name: str) -> RulesChanged:
    user = call.port.access.state.users.get(name)
    return RulesChanged(node=call.port.config.node.id, user=name, rules=0 if user is None else len(user.rules))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/acl/test",
        test_rules,
        TestView,
        route.CONSTANT,
        route_rights.USERS,
        body=TestRequest,
    ),
    Route.of_verb(
        "GET",
        "/v1/acl/{user}",
        get_rules,
        RulesView,
        route.page(bytes_max=RULES_BYTES_MAX),
        route_rights.of_verb(RequestCode.AUTH_GET_ACL),
        serves=Serves.READ,
        because=route.CALLER_CHOOSES,
    ),
    Route.of_verb(
        "PUT",
        "/v1/acl/{user}",
        set_rules,
        RulesChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.AUTH_UPDATE_ACL),
        RulesRequest,
    ),
    Route.of_verb(
        "DELETE",
        "/v1/acl/{user}",
        remove_rules,
        RulesChanged,
        route.CONSTANT,
        route_rights.of_verb(RequestCode.AUTH_DELETE_ACL),
        asks=(POLICY, RESOURCE),
    ),
)
