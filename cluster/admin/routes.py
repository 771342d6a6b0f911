"""Lists every path of the HTTP API. Each file of handlers has the routes that it serves; the server and /openapi.json
are made from all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Final

from cluster.admin import route, route_rights
from cluster.admin.handler_request import Call, Raw
from cluster.admin.handlers import (
    backup,
    broker_groups,
    configuration,
    consistency,
    dashboard,
    drains,
    events,
    group_changes,
    groups,
    health,
    history,
    hot,
    learnt_limits,
    member_requests,
    messages,
    metadata,
    node_reports,
    open_transactions,
    quotas,
    registry,
    retention,
    staged_writes,
    tier,
    topics,
    upgrade,
)
from cluster.admin.handlers.access import auth_mode, rules, sessions, tokens, users
from cluster.admin.openapi import document
from cluster.admin.route import Route
from cluster.runtime import metered_json
from raftlog.work import charge

OPENAPI_UNITS = 50_000


async def get_openapi(call: Call) -> Raw:
    """Returns the description of this API as an OpenAPI 3.1 document."""
    return Raw("application/json", _openapi(call.port.config.limits.topic_length_max))


@cache
def _openapi(topic_length_max: int) -> bytes:
    """Returns the document as JSON. It is cached, because it takes about 50 ms to make."""
    charge(OPENAPI_UNITS)
    return metered_json.encode(document(ROUTES, topic_length_max))


def routes_of(*tables: Sequence[Route]) -> tuple[Route, ...]:
    """Returns all routes. Raises ValueError for a route without needs, or one that is listed twice, so that the node
    does not start."""
    routes = tuple(route for table in tables for route in table)
    named = Counter((route.method, route.path) for route in routes)
    twice = sorted(name for name, times in named.items() if times > 1)
    without = [(route.method, route.path) for route in routes if route.needs is None]
    if twice or without:
        raise ValueError(f"routes of the HTTP API: {twice} are there twice, {without} name no rights")
    return routes


ROUTES: Final = routes_of(
    health.ROUTES,
    node_reports.ROUTES,
    events.ROUTES,
    configuration.ROUTES,
    upgrade.ROUTES,
    broker_groups.ROUTES,
    drains.ROUTES,
    topics.ROUTES,
    messages.ROUTES,
    groups.ROUTES,
    group_changes.ROUTES,
    open_transactions.ROUTES,
    learnt_limits.ROUTES,
    quotas.ROUTES,
    registry.ROUTES,
    staged_writes.ROUTES,
    member_requests.ROUTES,
    consistency.ROUTES,
    history.ROUTES,
    hot.ROUTES,
    metadata.ROUTES,
    backup.ROUTES,
    retention.ROUTES,
    tier.ROUTES,
    sessions.ROUTES,
    users.ROUTES,
    rules.ROUTES,
    tokens.ROUTES,
    auth_mode.ROUTES,
    (Route("GET", "/openapi.json", get_openapi, "application/json", route.CONSTANT, route_rights.OPEN),),
    dashboard.ROUTES,
)
