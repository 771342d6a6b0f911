"""A proxy before a server that speaks S3, in a process of its own: deltalake keeps all threads of its process waiting
during some calls.

Orders come on its standard input, one a line: `lose P SEED` loses the answers of a share P of the requests that write,
after the server has carried them out; `lie` leaves conditions out of requests; `refuse` answers as to a wrong key;
`silent` closes connections; `pass` ends it; `log` answers with the requests since the last `log`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.pace import at_most
from tests.support.s3_server import BreakingProxy

_CONDITION = re.compile(rb"(?i)\r\nif-(none-)?match:[^\r]*")
REFUSAL = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist</Message></Error>"


class StoreProxy:
    """The proxy, as the test sees it. `endpoint` is its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.endpoint = self._answer()

    def order(self, words: str) -> str:
        """Gives an order; returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        return self._answer()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process reaches the store through the proxy."""
        keys = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key"}
        return {**keys, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.endpoint}

    def requests(self) -> list[str]:
        """The first lines of the requests since the last call."""
        found: list[str] = json.loads(self.order("log"))
        return found

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def store_proxy(endpoint: str) -> Iterator[StoreProxy]:
    """A proxy before the server at `endpoint`."""
    command = [sys.executable, "-m", "tests.support.store_proxy", endpoint]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        yield StoreProxy(process)
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.terminate()
        process.wait(at_most(30))


class _Proxy(BreakingProxy):
    lies = False

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        return await super()._ask(_CONDITION.sub(b"", head) if self.lies else head, body)


def _losing(share: float, seed: int) -> Callable[[bytes, bytes], bytes]:
    chance = random.Random(seed)

    def breaks(head: bytes, answer: bytes) -> bytes:
        if not head.startswith((b"PUT", b"POST")) or chance.random() >= share:
            return answer
        if chance.random() < 0.5:
            return b""
        return b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    return breaks


def _refusing(head: bytes, answer: bytes) -> bytes:
    return b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(REFUSAL), REFUSAL)


async def _serve(proxy: _Proxy) -> None:
    async with proxy:
        print(proxy.endpoint, flush=True)  # noqa: T201 - the answers of this process
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            what, *given = line.decode().split()
            answer = ""
            if what == "log":
                answer = json.dumps([each.decode() for each in proxy.requests])
                proxy.requests.clear()
            else:
                proxy.lies, proxy.breaks = what == "lie", lambda head, answer: answer
                if what == "lose":
                    proxy.breaks = _losing(float(given[0]), int(given[1]))
                elif what == "refuse":
                    proxy.breaks = _refusing
                elif what == "silent":
                    proxy.breaks = lambda head, answer: b""
            print(answer, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_serve(_Proxy(sys.argv[1])))
