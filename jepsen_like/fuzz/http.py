"""Requests of the HTTP API, made from its OpenAPI document: every operation, its path, query and body, almost valid.

Operations that would change the leader, the members or files get arguments that cannot be accepted (`UNACCEPTABLE`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from jepsen_like.fuzz.guard import Guard
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.hostile import almost_valid_values
from jepsen_like.hostile.almost_valid import GROUPS, MADE, TOPICS

RAW = "HTTP that is none"
_MORE = ("Prefer: redirect\r\n", "Origin: http://elsewhere\r\n", "Prefer: x\r\n")
_PARAMETER = re.compile(r"{(\w+)}")
_NOBODY = ("77", "0", "-1", "99999999999999999999", "x", "1e3", "%00", "..")


def _nobody(rng: random.Random, body: Any) -> Any:
    return {"to": rng.choice((77, 0, -1, 1 << 70, "2", 1.5, None, [1]))}


def _no_member(rng: random.Random, body: Any) -> Any:
    return (
        {**body, "cluster_id": almost_valid_values.text(rng), "uuid": almost_valid_values.text(rng)}
        if isinstance(body, dict)
        else body
    )


def _no_folder(rng: random.Random, body: Any) -> Any:
    to = rng.choice(("", "relative", "/proc/nowhere/x/y", "/dev/null/x/y", 5, None, "a" * 5000, "\x00"))
    return {**body, "to": to} if isinstance(body, dict) else {"to": to}


def _no_action(rng: random.Random, body: Any) -> Any:
    name = rng.choice(("append.fdatasync", "no.such", "", 5, None))
    return {
        "name": name,
        "action": rng.choice(("explode", "", 5, None, "delay:", "delay:-1", "\x00", "hold:hold", [1])),
    }


def _no_mode(rng: random.Random, body: Any) -> Any:
    return {"mode": rng.choice(("", "enforced", None, 5, ["off"], "\x00"))}


def _as_it_is(rng: random.Random, body: Any) -> Any:
    return body


def _no_setting(rng: random.Random, body: Any) -> Any:
    key = rng.choice(("retention.hous", "raft.tick_ms", "", "limits", "\x00", "retention.hours"))
    return {**body, "values": {key: rng.choice(("", None, [1], {"a": 1}, -1, "soon"))}} if type(body) is dict else body


UNACCEPTABLE: dict[str, Callable[[random.Random, Any], Any]] = {
    "POST /v1/leader/transfer": _nobody,
    "POST /v1/members": _no_member,
    "POST /v1/members/{id}/promote": _as_it_is,
    "DELETE /v1/members/{id}": _as_it_is,
    "POST /v1/members/{id}/drain": _as_it_is,
    "POST /v1/members/{id}/maintenance": _as_it_is,
    "PUT /v1/config": _no_setting,
    "PUT /v1/auth": _no_mode,
    "POST /v1/backup": _no_folder,
    "PUT /v1/failpoints": _no_action,
}
"""Operation -> a function that changes the body of a request so that the operation has no effect. It returns the body
unchanged if the path names a member, because that member does not exist.
"""
SELDOM = frozenset(
    {
        "POST /v1/scrub",
        "POST /v1/repair",
        "POST /v1/consistency",
        "POST /v1/retention/run",
        "POST /v1/config/reload",
        "GET /openapi.json",
        "GET /v1/consistency",
        "GET /metrics",
        "POST /v1/consistency/log",
        "GET /v1/metadata",
        "POST /v1/tier/scrub",
        "POST /v1/tier/seal",
    }
)
"""Operations that are drawn a tenth as often, because they make work for the whole node, or long answers."""


class HttpRequests:
    """Draws requests of the document's operations."""

    def __init__(
        self, document: dict[str, Any], rng: random.Random, guard: Guard | None = None, *, is_good: bool = False
    ) -> None:
        """`document`: OpenAPI 3.1. `is_good`: nothing is wrong in the form of the requests."""
        self._rng = rng
        self._guard = guard
        self._is_good = is_good
        self._schemas: dict[str, Any] = document["components"]["schemas"]
        self._operations = {
            f"{method.upper()} {path}": (method.upper(), path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        }
        self._names = [name for name in self._operations for _ in range(1 if name in SELDOM else 10)]

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of all handlers that must be reached."""
        return (*self._operations, RAW)

    def draw(self, name: str = "") -> Shot:
        """Draws the next request, of the operation called `name`, or of any if it is empty. The caller waits for the
        answer before it sends the next request on the same connection.
        """
        rng = self._rng
        name = name or rng.choice(self._names)
        method, path, operation = self._operations[name]
        head = f"{method} {self._path(name, path)}{self._query(operation)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        body = b""
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = self._body(name, schema)
        elif rng.random() < 0.05 and not self._is_good:
            body = almost_valid_values.noise(rng)
        kind, more, is_proven = "application/json", "", False
        if not self._is_good:
            kind = kind if rng.random() < 0.98 else rng.choice(("text/plain", "", "application/json; x=\xff"))
            more = rng.choice(("", "", "", "", "", *_MORE))
        if self._guard is not None and name != "DELETE /v1/session":  # would end the token
            line, is_proven = self._guard.header(rng, is_good=self._is_good)
            head += line
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        return Shot(Port.HTTP, name, head.encode("latin-1", "replace") + body, 0, is_proven)

    def raw(self) -> Shot:
        """Draws a request that is malformed as HTTP, or that has an unusual method. It gets a connection of its own."""
        rng = self._rng
        lines = (
            b"GET /v1/health HTTP/9.9\r\n\r\n",
            b"GET  /v1/health\r\n\r\n",
            b"POST /v1/topics HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
            b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 70000\r\n\r\n"
            + b"x" * 70_000,
            b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 400 + b"\r\n",
            b"\x00" * 40,
            b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
            b"TRACE /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n",
            b"HEAD /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v1/topics HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        )
        return Shot(Port.HTTP, RAW, rng.choice((*lines, almost_valid_values.noise(rng, 300) + b"\r\n\r\n")))

    def _path(self, name: str, path: str) -> str:
        def fill(match: re.Match[str]) -> str:
            if match[1] == "id":
                return self._rng.choice(_NOBODY)
            if self._is_good or self._rng.random() < 0.6:
                return quote(self._rng.choice((*TOPICS, *GROUPS, *MADE, "k1", "0", "5")), safe="")
            return quote(almost_valid_values.text(self._rng)[:2000].encode("utf-8", "surrogatepass"), safe="") or "x"

        if path.startswith("/v1/topics/") and name.startswith("DELETE"):
            return f"/v1/topics/{self._rng.choice((*MADE, 'none', '%00'))}"
        return _PARAMETER.sub(fill, path)

    def _query(self, operation: dict[str, Any]) -> str:
        rng = self._rng
        known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        if "since" in known and rng.random() < 0.8:
            odd = quote(almost_valid_values.text(rng)[:100].encode("utf-8", "replace"))
            return f"?since={rng.choice(('0', '1048576', odd))}"
        if known and rng.random() < 0.4:
            return f"?{known[0]}={rng.choice(('local', 'linearizable', 'linearizable', '', 'x', '%ff'))}"
        if self._is_good or rng.random() >= 0.05:
            return ""
        return rng.choice(("?x=1", "?consistency", "?%00=%00", "?&&"))

    def _body(self, name: str, schema: dict[str, Any]) -> bytes:
        rng = self._rng
        document = self._value(schema)
        if not self._is_good:
            document = almost_valid_values.tree(rng, document, rng.choice((0, 0, 1, 1, 2)))
        unacceptable = UNACCEPTABLE.get(name)
        return (
            almost_valid_values.encode(rng, unacceptable(rng, document))
            if unacceptable is not None
            else self._tamed(document)
        )

    def _tamed(self, document: Any) -> bytes:
        """Returns the document with new names replaced by ones from a pool, so that a long run does not fill the
        cluster with topics."""
        if isinstance(document, dict) and isinstance(document.get("name"), str) and document["name"] not in MADE:
            document["name"] = self._rng.choice((*MADE, "", "a b", "f" * 300))
        return almost_valid_values.encode(self._rng, document)

    def _value(self, schema: dict[str, Any], name: str = "") -> Any:
        """Draws a value that fits the schema."""
        rng = self._rng
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rsplit("/", 1)[1]], name)
        for choices in ("anyOf", "oneOf"):
            if choices in schema:
                return self._value(rng.choice(schema[choices]), name)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        return self._plain(schema, name)

    def _plain(self, schema: dict[str, Any], name: str) -> Any:
        rng, kind = self._rng, schema.get("type")
        if kind == "object":
            if "properties" not in schema:
                return {"dedup": "strict"} if rng.random() < 0.5 else {}
            required = schema.get("required", ())
            return {
                key: self._value(each, key)
                for key, each in schema["properties"].items()
                if key in required or rng.random() < 0.5
            }
        if kind == "array":
            if "prefixItems" in schema:
                return [self._value(each, name) for each in schema["prefixItems"]]
            return [self._value(schema.get("items", {}), name) for _ in range(rng.randrange(3))]
        if kind in ("integer", "number"):
            low = int(schema.get("minimum", schema.get("exclusiveMinimum", 0)))
            return rng.randint(low, min(int(schema.get("maximum", 1 << 20)), low + 9))
        if kind == "boolean":
            return rng.random() < 0.5
        return None if kind == "null" else self._word(name)

    def _word(self, name: str) -> str:
        pools = {"topic": (*TOPICS, *MADE), "group": (*GROUPS, *MADE), "name": MADE}
        return self._rng.choice(pools.get(name, ("x", "127.0.0.1", "*", "true", "")))


def parse(buffer: bytearray, *, is_head: bool = False) -> tuple[int, int] | None:
    """Returns (status, length of the whole answer) if the answer is complete, else None. Raises ValueError or
    IndexError for bytes that are no answer.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ", 2)[1])
    fields = {name.strip().lower(): rest.strip() for name, _, rest in (line.partition(":") for line in head[1:])}
    length = 0 if is_head else int(fields.get("content-length", "0"))
    return (status, end + 4 + length) if len(buffer) >= end + 4 + length else None


def load_document(data: bytes) -> dict[str, Any]:
    """Parses the OpenAPI document that a node serves."""
    document: dict[str, Any] = json.loads(data)
    return document
