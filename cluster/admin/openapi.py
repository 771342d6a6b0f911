"""Makes /openapi.json from the table of routes and from the Structs of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from cluster.admin.errors import STATUS, ErrorView
from cluster.admin.handler_request import BELOW_THREE, DRY_RUN
from cluster.admin.handlers.configuration import BEFORE, CHANGES_MAX
from cluster.admin.handlers.history import SINCE
from cluster.admin.handlers.messages import BODY_BYTES, COUNT, COUNTED_IN, MESSAGES_MAX, OFFSET, TIME_MS
from cluster.admin.pagination import AFTER, LIMIT
from cluster.admin.request_parsing import BROKER_GROUP
from cluster.admin.route import PAGE_ITEMS_MAX, Route, documented
from cluster.requests.verb import Serves
from cluster.runtime.events import KINDS
from cluster.runtime.host.versions import versions
from cluster.runtime.request_limits import GROUP_LENGTH_MAX, INT64_MAX, TOPIC_LENGTH_MAX
from raftlog.types import FIRST_GROUP, GROUPS_MAX
from raftmq_wire.topic_identity import FORM

PATH_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "id": {"type": "integer", "minimum": 1, "maximum": 65_535},
    "queue": {"type": "integer", "minimum": 0, "maximum": 65_534},
    "index": {"type": "integer", "minimum": 0, "maximum": INT64_MAX},
    "position": {"type": "integer", "minimum": 0, "maximum": INT64_MAX},
    "token": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "user": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"},
    # This request may create the group, so the stricter pattern of new names applies. Other routes only name existing
    # groups.
    "/v1/groups/{name}/clone{name}": {"type": "string", "pattern": f"^[%|a-zA-Z0-9_-]{{1,{GROUP_LENGTH_MAX}}}$"},
}
"""Name of a path parameter -> its JSON schema; parameters without an entry are strings. If a name means something else
in one path, the key PATH{NAME} has that schema and takes precedence."""
_WHOLE: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": INT64_MAX}
QUERY_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "consistency": {"enum": ["local", "linearizable"], "default": "local"},
    DRY_RUN: {"enum": ["true", "false"], "default": "false"},
    BELOW_THREE: {"enum": ["true", "false"], "default": "false"},
    "since": {"type": "string", "pattern": r"^(\d{1,18}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z)$"},
    "kind": {"enum": list(KINDS)},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
    OFFSET: _WHOLE,
    TIME_MS: _WHOLE,
    COUNT: {"type": "integer", "minimum": 0, "maximum": MESSAGES_MAX, "default": MESSAGES_MAX},
    BODY_BYTES: _WHOLE,
    COUNTED_IN: {"type": "string", "pattern": f"^{FORM}$", "description": "`counted_in` of the page before"},
    "/v1/tier/segments?since": {"type": "string", "pattern": r"^\d{1,18}$", "default": "0"},
    "/v1/config/history?limit": {"type": "integer", "minimum": 1, "maximum": CHANGES_MAX, "default": CHANGES_MAX},
    BEFORE: _WHOLE,
    BROKER_GROUP: {
        "type": "integer",
        "minimum": FIRST_GROUP,
        "maximum": GROUPS_MAX,
        "description": "The group of brokers that answers; without it, that of the node that is asked",
    },
    "/v1/audit?limit": {"type": "integer", "minimum": 1, "maximum": 200, "default": 200},
    "policy": {"enum": ["Custom", "Default"]},
    "resource": {"type": "string", "maxLength": 300},
    "user": {"type": "string", "maxLength": 64},
    AFTER: {"type": "string", "description": "`next` of the page before"},
    **{
        f"{path}?{LIMIT}": {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX, "default": PAGE_ITEMS_MAX}
        for path in ("/v1/topics", "/v1/topics/{name}", "/v1/groups", "/v1/groups/{name}", "/v1/users")
    },
    f"/v1/topics/{{name}}?{AFTER}": _WHOLE,
    f"/v1/groups/{{name}}?{AFTER}": {"type": "string", "pattern": r"^([%|a-zA-Z0-9_-]+/\d{1,5})?$"},
    SINCE: {"type": "integer", "minimum": 0, "maximum": INT64_MAX, "default": 0},
}
_PARAMETER = re.compile(r"{(\w+)}")
_REF = "#/components/schemas/{name}"


def document(routes: Iterable[Route], topic_length_max: int = TOPIC_LENGTH_MAX) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document. `topic_length_max` is the most characters of the name of a new topic."""
    routes = tuple(routes)
    kinds = {each for route in routes for each in (route.answer, route.body) if isinstance(each, type)}
    _, schemas = msgspec.json.schema_components(
        sorted(kinds | {ErrorView}, key=lambda kind: kind.__name__), ref_template=_REF
    )
    for route in routes:
        if route.body is not None:  # a body with unknown fields is refused (request_parsing.py), so its schema says so
            schemas[route.body.__name__]["additionalProperties"] = False
    schemas["TopicRequest"]["properties"]["name"]["maxLength"] = topic_length_max
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "RaftMQ admin API",
            "version": versions()["raftmq"],
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": documented(route),
        "description": f"Answered by {route.serves.value}.",
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {str(status): _answer(route) for status in route.statuses} | {"default": _error()},
    }
    if route.serves in (Serves.LEADER, Serves.CONFIRMED):
        operation["parameters"].append(
            {
                "name": "Prefer",
                "in": "header",
                "description": "`redirect`: a follower answers 307 with the leader's address",
                "schema": {"type": "string"},
            }
        )
        operation["responses"]["307"] = {"description": "The leader's address, in Location"}
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(route.path, name)}
        for name in _PARAMETER.findall(route.path)
    ]


def _path_schema(path: str, name: str) -> dict[str, Any]:
    return PATH_SCHEMAS.get(f"{path}{{{name}}}") or PATH_SCHEMAS.get(name, {"type": "string"})


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    """Returns the descriptions of the route's query parameters. If a name means something else in one path, the key
    PATH?NAME of QUERY_SCHEMAS takes precedence."""
    own = {name: QUERY_SCHEMAS.get(f"{route.path}?{name}") or QUERY_SCHEMAS[name] for name in route.query}
    return [{"name": name, "in": "query", "schema": schema} for name, schema in own.items()]


def _answer(route: Route) -> dict[str, Any]:
    if isinstance(route.answer, str):
        return {"description": documented(route), "content": {route.answer: {}}}
    return {"description": documented(route), "content": {"application/json": {"schema": _ref(route.answer)}}}


def _error() -> dict[str, Any]:
    codes = ", ".join(f"{code} ({status})" for code, status in STATUS.items())
    return {
        "description": f"One of {codes}. Except after unknown_outcome and internal nothing was changed.",
        "content": {"application/json": {"schema": _ref(ErrorView)}},
    }


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
