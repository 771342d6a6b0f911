"""A server that speaks S3, in a process of its own, and a proxy before it that breaks answers."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.config.storage_sections import TierSection
from tests.support.pace import at_most

BUCKET = "bucket"
KEYS = "[default]\naws_access_key_id = access-key\naws_secret_access_key = secret-key\n"
SERVER = """
import threading
from moto import server

run_simple, alone = server.run_simple, threading.Lock()

def run(host, port, app, **options):
    def one_at_a_time(environ, start_response):
        with alone:
            return app(environ, start_response)

    run_simple(host, port, one_at_a_time, **options)

server.run_simple = run
server.main()
"""
"""moto_server, one request at a time: moto's threads share objects without a lock. A condition is compared first and
written later, so two could win; and a read beside a write of the same object answers 500."""
START_TRIES, START_PAUSE_S = 600, 0.05
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_EXPECTS = re.compile(rb"(?i)\r\nexpect: *100-continue")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")


@contextmanager
def moto() -> Iterator[str]:
    """The endpoint of a moto server with an empty bucket."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait(server, port)
        make_bucket(endpoint)
        yield endpoint
    finally:
        server.terminate()
        server.wait(at_most(30))


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(START_TRIES):
        assert server.poll() is None, "the server did not start"
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(START_PAUSE_S)
        else:
            return
    raise AssertionError("the server does not listen")


def make_bucket(endpoint: str, name: str = BUCKET) -> None:
    """Unsigned; moto takes it."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=at_most(30)).close()


def options(endpoint: str, folder: Path) -> TierSection:
    """Returns a tier's configuration, with keys in a file of `folder`."""
    keys = folder / "credentials"
    keys.write_text(KEYS)
    return TierSection(endpoint=endpoint, region="us-east-1", credentials_file=str(keys))


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body of a request as it came: with the sizes of its chunks, if it has any."""
    if not _CHUNKED.search(head):
        length = _LENGTH.search(head)
        return await reader.readexactly(int(length[1])) if length else b""
    parts, size = [], -1
    while size:
        parts.append(line := await reader.readuntil(b"\r\n"))
        size = int(line.split(b";")[0], 16)
        if size:
            parts.append(await reader.readexactly(size + 2))
    while line != b"\r\n":
        parts.append(line := await reader.readuntil(b"\r\n"))
    return b"".join(parts)


class BreakingProxy:
    """Passes one request per connection on, and hands the answer to `breaks`, which says what the client gets of it.
    None: nothing, for ever. Empty: the connection is closed."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("http://").split(":")
        self._target = host, int(port)
        self.breaks: Callable[[bytes, bytes], bytes | None] = lambda request, answer: answer
        """(head of the request, answer)."""
        self.asks: Callable[[bytes], bytes] = lambda head: head
        """What the server behind gets of the head of a request."""
        self.passes = True
        """True if the server behind gets the request at all."""
        self.requests: list[bytes] = []
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> BreakingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._open:
            writer.close()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if _EXPECTS.search(head):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                head = _EXPECTS.sub(b"", head)
            body = await _body(reader, head)
            self.requests.append(head.split(b"\r\n", 1)[0])
            answer = self.breaks(head, await self._ask(self.asks(head), body) if self.passes else b"")
            if answer is None:
                await reader.read()  # until the client goes
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._target)
        try:
            line, rest = head.split(b"\r\n", 1)
            writer.write(line + b"\r\nConnection: close\r\n" + rest + body)
            return await reader.read()
        finally:
            writer.close()
