"""An HTTP API whose lists are longer than a page, for whatever reads them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

ITEMS = 250
PAGE_ITEMS = 100


class Listed(NamedTuple):
    """A list that has pages. `cursor`: the query parameter for the next page; `item`: makes the item of a number."""

    field: str
    cursor: str
    item: Callable[[int], dict[str, Any]]
    around: dict[str, Any]


def name(number: int) -> str:
    """Names that ascend."""
    return f"n{number:04}"


def _topic(number: int) -> dict[str, Any]:
    return {"name": name(number), "write_queues": 1, "perm": 6, "attributes": {}, "messages": 0, "bytes": None}


def _group(number: int) -> dict[str, Any]:
    return {"name": name(number), "topics": ["n"], "members": 0, "lag": number}


def _offset(number: int) -> dict[str, Any]:
    row = dict.fromkeys(("committed_offset", "min_offset", "max_offset", "lag", "lag_ms", "committed_age_ms"), 0)
    return {"topic": "t", "queue_id": number, "owner": None, **row}


def _queue(number: int) -> dict[str, Any]:
    return {"queue_id": number, "min_offset": 0, "max_offset": number}


def _user(number: int) -> dict[str, Any]:
    shown = {"name": name(number), "type": "Normal", "enabled": True, "rules": 0, "tokens": 0, "created": ""}
    return {**shown, "created_ms": 0}


def _quota(number: int) -> dict[str, Any]:
    return {"subject": name(number), "limits": {"send_messages": 1}, "changed_by": "", "exists": True}


def _segment(number: int) -> dict[str, Any]:
    return {"base": number, "end": number + 1, "state": "verified", "stored_bytes": 1, "parts": []}


def _change(number: int) -> dict[str, Any]:
    return {"number": number, "at": "", "user": "", "address": "", "about": "", "action": name(number)}


def _version(number: int) -> dict[str, Any]:
    return {
        "version": number,
        "time_ms": 0,
        "author": "",
        "reason": "",
        "changes": [{"key": "k", "before": None, "after": 1}],
    }


LISTS = {
    "/v1/topics": Listed("topics", "after", _topic, {"node": 1, "applied_index": 9}),
    "/v1/topics/{name}": Listed("queues", "after", _queue, {"topic": _topic(0)}),
    "/v1/groups": Listed("groups", "after", _group, {}),
    "/v1/groups/{name}": Listed("offsets", "after", _offset, {"lag": 0, "members": []}),
    "/v1/users": Listed("users", "after", _user, {}),
    "/v1/quotas": Listed("quotas", "after", _quota, {}),
    "/v1/audit": Listed("changes", "before", _change, {}),
    "/v1/config/history": Listed("changes", "before", _version, {}),
    "/v1/tier/segments": Listed("segments", "since", _segment, {"node": 1}),
}
"""Path of a route -> its list."""


def page_of(target: str) -> dict[str, Any]:
    """Returns the page that a GET for this target asks for. The cursor is the number of the first item, in words that
    need quoting."""
    path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
    if path == "/v1/quotas/refused":  # what `raftmq quota list` shows besides
        return {"owners": []}
    listed = LISTS.get(path) or LISTS[f"{path.rpartition('/')[0]}/{{name}}"]
    first = int(query.get(listed.cursor, ["from & 0"])[0].removeprefix("from & "))
    end = min(ITEMS, first + min(PAGE_ITEMS, int(query.get("limit", [PAGE_ITEMS])[0])))
    items = [listed.item(number) for number in range(first, end)]
    return {**listed.around, listed.field: items, "next": None if end == ITEMS else f"from & {end}"}


class PagingApi:
    """Serves `LISTS`; refuses what is none of them."""

    def __init__(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    status, value = 200, page_of(self.path)
                except LookupError:
                    status, value = 404, {"error": {"code": "not_found", "message": self.path, "hint": ""}}
                self._answer(status, value)

            def do_POST(self) -> None:
                self._answer(404, {"error": {"code": "not_found", "message": f"no {self.path}", "hint": ""}})

            do_DELETE = do_POST

            def _answer(self, status: int, value: dict[str, Any]) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
