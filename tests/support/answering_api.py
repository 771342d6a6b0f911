"""The HTTP API of a node that answers as a test says."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from raftmq.local.http.admin_http import ApiRefusal
from raftmq_wire.errors import ExitCode


class Asked(NamedTuple):
    """One request as it came in; `body` is its JSON value."""

    method: str
    target: str
    body: Any


class AnsweringApi:
    """Listens on a port of this machine. `answers`: "GET /v1/topics", without a query -> the JSON value, bytes, or a
    function that makes it from what was `Asked`. An answer of None hangs up, and an ApiRefusal is told. "*" is
    for any other request, which else is not found."""

    def __init__(self, answers: Mapping[str, Any], port: int = 0) -> None:
        self.answers = dict(answers)
        self.asked: list[Asked] = []
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.command, self.path, json.loads(data) if data else None)
                api.asked.append(asked)
                status, value = api.answer(asked)
                if value is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.end_headers()
                self.wfile.write(value if isinstance(value, bytes) else json.dumps(value).encode())

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.address = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """Returns the status and the JSON value of the answer."""
        route = f"{asked.method} {urlsplit(asked.target).path}"
        none = ApiRefusal("not_found", f"{route} is none of the test's answers", "", "", ExitCode.REFUSED)
        value = self.answers.get(route, self.answers.get("*", none))
        try:
            value = value(asked) if callable(value) else value
        except ApiRefusal as refusal:
            value = refusal
        if not isinstance(value, ApiRefusal):
            return 200, value
        message = f"{value.what}: {value.why}" if value.why else value.what
        return 409, {"error": {"code": value.code, "message": message, "hint": value.fix}}

    def close(self) -> None:
        """Ends the server: its port refuses connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


MakeApi = Callable[..., AnsweringApi]


@contextmanager
def answering(answers: Mapping[str, Any], port: int = 0) -> Iterator[AnsweringApi]:
    """Serves within the block; on a free port, unless one is given."""
    api = AnsweringApi(answers, port)
    try:
        yield api
    finally:
        api.close()


@pytest.fixture
def make_api() -> Iterator[MakeApi]:
    """Starts servers that end with the test."""
    with ExitStack() as stack:
        yield lambda answers: stack.enter_context(answering(answers))
