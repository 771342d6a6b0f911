"""/openapi.json, from the route table and the Structs that requests and answers are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from cluster.admin.errors import STATUS, ErrorView
from cluster.admin.routes import Route, Serves, documented
from cluster.admin.versions import versions

_PARAMETER = re.compile(r"{(\w+)}")
_REF = "#/components/schemas/{name}"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    routes = tuple(routes)
    kinds = {each for route in routes for each in (route.answer, route.body) if isinstance(each, type)}
    _, schemas = msgspec.json.schema_components(
        sorted(kinds | {ErrorView}, key=lambda kind: kind.__name__), ref_template=_REF
    )
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
    if route.serves is Serves.LEADER:
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
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "schema": {"enum": ["local", "linearizable"], "default": "local"}}
        for name in route.query
    ]


def _answer(route: Route) -> dict[str, Any]:
    if isinstance(route.answer, str):
        return {"description": documented(route), "content": {route.answer: {}}}
    return {"description": documented(route), "content": {"application/json": {"schema": _ref(route.answer)}}}


def _error() -> dict[str, Any]:
    codes = ", ".join(f"{code} ({status})" for code, status in STATUS.items())
    return {
        "description": f"One of {codes}. Except after unknown_outcome nothing was changed.",
        "content": {"application/json": {"schema": _ref(ErrorView)}},
    }


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
