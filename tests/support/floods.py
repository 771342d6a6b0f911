"""Floods of requests of a user, and harmless requests of the same number and size, beside honest sends."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout

from jepsen_like.client_kit.fields import send_fields
from jepsen_like.client_kit.frames import HOST, request
from jepsen_like.client_kit.wire import Wire
from raftmq_wire.codes import RequestCode as Code
from raftmq_wire.signature import Credentials
from tests.support.user_cluster import ROOT

Who = tuple[str, str]
"""Name and secret of a user, who owns the topics and groups that begin with its name."""
ANN: Who = ("ann", "the-secret-of-ann")
"""The user who sends beside a flood."""
TREE = Path(__file__).parents[2]
VARIANTS = 40
"""Different bursts of a flood whose names are ever new. They are made before: what it costs to make them is not theirs
who are looked at."""


class Flood(NamedTuple):
    """What one flood asks for, again and again, on one connection."""

    bursts: list[bytes]
    """Written one after the other, each at once."""
    requests: int
    """Requests of one burst."""
    on_one: int
    """Bursts on one connection; then it is closed, and the next one made."""
    permitted: bytes = b""
    """One request of the same code that the user may make; b"" if there is none as harmless."""


class Seen(NamedTuple):
    """The honest requests beside a flood."""

    codes: list[int]
    took_ms: list[float]

    def p99_ms(self) -> float:
        """Returns the time within which 99 of 100 were answered."""
        return sorted(self.took_ms)[len(self.took_ms) * 99 // 100]


def signed(who: Who, code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    return request(code, Credentials(*who).signed(ext, body), body)[1]


def wide_heartbeat(who: Who) -> Flood:
    """Heartbeats of 20,000 topics, in 400 KB."""
    topics = [{"topic": f"t{number}", "subString": "*"} for number in range(20_000)]

    def of(topics: list[dict[str, str]], **more: str) -> bytes:
        data = {"clientID": "e", "consumerDataSet": [{"groupName": who[0], "subscriptionDataSet": topics}], **more}
        return signed(who, Code.HEART_BEAT, {}, json.dumps(data).encode())

    wide = of(topics)
    own = [{"topic": f"{who[0]}-{number}", "subString": "*"} for number in range(1_000)]
    return Flood([wide], 1, 5, of(own, pad="x" * (len(wide) - len(of(own, pad="")))))


def wide_lock(who: Who) -> Flood:
    """Locks of 20,000 queues."""
    queues: list[dict[str, object]] = [
        {"brokerName": "b", "topic": f"t{number}", "queueId": 0} for number in range(20_000)
    ]

    def of(queues: list[dict[str, object]], **more: str) -> bytes:
        data = {"consumerGroup": who[0], "clientId": "e", "mqSet": queues, **more}
        return signed(who, Code.LOCK_BATCH_MQ, {}, json.dumps(data).encode())

    wide = of(queues)
    own: list[dict[str, object]] = [
        {"brokerName": "b", "topic": who[0], "queueId": number % 4} for number in range(1_000)
    ]
    return Flood([wide], 1, 5, of(own, pad="x" * (len(wide) - len(of(own, pad="")))))


def long_names(who: Who) -> Flood:
    """Denied heartbeats with the name of a group of 2 MB."""
    data = {"clientID": "e", "consumerDataSet": [{"groupName": "\N{GRINNING FACE}" * 250_000}]}
    return Flood([signed(who, Code.HEART_BEAT, {}, json.dumps(data, ensure_ascii=False).encode())], 1, 5)


def resets(who: Who) -> Flood:
    """200 resets of a topic of many queues in one write."""
    ext = {"group": who[0], "topic": f"{who[0]}-wide", "timestamp": "-1", "isForce": "true"}
    return Flood([b"".join(signed(who, Code.INVOKE_BROKER_TO_RESET_OFFSET, ext) for _ in range(200))], 200, 1)


def denied_names(who: Who) -> Flood:
    """Denied sends, each to another topic."""

    def one(topic: str) -> bytes:
        fields = {str(key): str(value) for key, value in send_fields(topic, "").items()}
        return signed(who, Code.SEND_MESSAGE_V2, fields, b"x")

    bursts = [b"".join(one(f"no-{burst}-{at}") for at in range(200)) for burst in range(VARIANTS)]
    return Flood(bursts, 200, 1, one(who[0]))


def guesses(who: Who) -> Flood:
    """Requests in another's name, signed with a wrong secret."""
    ext = {"topic": ANN[0], "queueId": "0"}
    wrong = (ANN[0], f"a-wrong-secret-of-{who[0]}")
    return Flood([b"".join(signed(wrong, Code.GET_MAX_OFFSET, ext) for _ in range(200))], 200, 1)


def lists_of_rules(who: Who) -> Flood:
    """Lists of all rules, 30 in one write, whose client does not wait for them. Only a Super gets them."""
    return Flood([b"".join(signed(who, Code.AUTH_LIST_ACL, {}) for _ in range(30))], 30, 1)


KINDS: dict[str, Callable[[Who], Flood]] = {
    "heartbeats of 20,000 topics": wide_heartbeat,
    "locks of 20,000 topics": wide_lock,
    "names of 2 MB": long_names,
    "200 resets in one write": resets,
    "denied names": denied_names,
    "guesses": guesses,
    "lists of rules": lists_of_rules,
}


def harmless(who: Who, like: Flood) -> Flood:
    """Requests that the user may make, as many and as large as those of a flood."""
    if like.permitted:
        return like._replace(bursts=[like.permitted * like.requests])
    size = len(like.bursts[0]) // like.requests
    ext = {"topic": who[0], "queueId": "0"}
    bare = len(signed(who, Code.GET_MAX_OFFSET, ext))
    one = signed(who, Code.GET_MAX_OFFSET, ext, bytes(max(0, size - bare)))
    return like._replace(bursts=[one * like.requests])


async def play(port: int, what: Flood, seconds: float, *, every_s: float = 0.0) -> int:
    """Writes the bursts for so long, at most one every `every_s`, on new connections when a node closes one; returns
    the number of bursts."""
    began, sent, bursts = time.monotonic(), 0, itertools.cycle(what.bursts)
    while time.monotonic() < began + seconds:
        try:
            async with await Wire.dial(port) as wire:
                for _ in range(what.on_one):
                    await asyncio.sleep(max(0.0, began + sent * every_s - time.monotonic()))
                    await wire.send(next(bursts), 2)
                    sent += 1
                await asyncio.wait((wire.ended,), timeout=0.2)
        except OSError:
            await asyncio.sleep(0.05)
    return sent


@asynccontextmanager
async def until_done(seen: Seen, ask: Callable[[Seen], AsyncIterator[None]]) -> AsyncIterator[Seen]:
    """Asks again and again while the block runs."""
    stop = asyncio.Event()

    async def run() -> None:
        async for _ in ask(seen):
            if stop.is_set():
                return

    task = asyncio.create_task(run())
    try:
        yield seen
    finally:
        stop.set()
        await task


@asynccontextmanager
async def honest_sends(port: int, seen: Seen) -> AsyncIterator[None]:
    """A user who sends a message every 20 ms, in a process of its own, while the block runs."""
    command = [sys.executable, "-m", "tests.support.honest_sends", str(port), *ANN]
    process = await asyncio.create_subprocess_exec(*command, cwd=TREE, stdin=PIPE, stdout=PIPE)
    try:
        yield
    finally:
        printed, _ = await process.communicate(b"")  # closes stdin
        assert process.returncode == 0, printed
        codes, took_ms = json.loads(printed)
        seen.codes.extend(codes)
        seen.took_ms.extend(took_ms)


class Admin:
    """The HTTP API of one node, for a user."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
        self.session = ClientSession(timeout=ClientTimeout(total=10))
        self.token = ""

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def log_in(self, who: Who) -> None:
        data = {"user": who[0], "secret": who[1], "answer": "token"}
        async with self.session.post(f"{self.url}/v1/session", json=data) as answer:
            told = await answer.json()
            assert answer.status == 200, told
            self.token = told["token"]

    async def ask(self, method: str, path: str, **more: object) -> tuple[int, str]:
        """Returns (status, text); status 0 if the node closed the connection or did not answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with self.session.request(method, self.url + path, headers=headers, **more) as answer:  # type: ignore[arg-type]
                return answer.status, await answer.text()
        except (ClientError, TimeoutError) as error:
            return 0, repr(error)

    async def commands(self, seen: Seen) -> AsyncIterator[None]:
        """An operator who looks at the status, again and again."""
        while True:
            began = time.perf_counter()
            status, _ = await self.ask("GET", "/v1/status")
            seen.codes.append(status)
            seen.took_ms.append((time.perf_counter() - began) * 1000)
            yield
            await asyncio.sleep(0.1)

    async def longest_turns(self) -> dict[str, float]:
        """Returns function -> seconds of CPU of its longest turn of the loop."""
        _, text = await self.ask("GET", "/v1/metrics")
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("raftmq_turn_longest_seconds{")]
        return {name: float(value) for name, value in rows}


BEGUN = b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
WHOLE = b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def hold_places(port: int, seconds: float, *, what: bytes = BEGUN, every_s: float = 0.0) -> int:
    """Strangers at 64 addresses who begin requests and do not end them, or send other bytes, on ever new connections,
    at most one every `every_s`; returns how many connections they made."""
    began, begun = time.monotonic(), 0

    async def one(address: str) -> None:
        nonlocal begun
        while (left := began + seconds - time.monotonic()) > 0:
            try:
                reader, writer = await asyncio.open_connection(HOST, port, local_addr=(address, 0))
            except OSError:
                await asyncio.sleep(0.05)
                continue
            begun += 1
            with suppress(OSError):
                writer.write(what)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), left)
            writer.close()
            await asyncio.sleep(max(0.05, began + begun * every_s - time.monotonic()))

    await asyncio.gather(*(one(f"127.0.1.{number}") for number in range(1, 65) for _ in range(3)))
    return begun


async def repeat(seconds: float, act: Callable[[], AsyncIterator[None]]) -> int:
    """Runs the steps of `act` for so long; returns their number."""
    ends, count = time.monotonic() + seconds, 0
    async for _ in act():
        count += 1
        if time.monotonic() > ends:
            break
    return count


async def guess_logins(port: int, seconds: float, *, right: bool = False, every_s: float = 0.0) -> int:
    """Guesses of a secret at the HTTP API, or logins with it, at most one every `every_s`."""

    async def act() -> AsyncIterator[None]:
        async with Admin(port) as admin:
            began = time.monotonic()
            for number in itertools.count():
                secret = ANN[1] if right else f"guess {number}"
                await admin.ask("POST", "/v1/session", json={"user": ANN[0], "secret": secret})
                yield
                await asyncio.sleep(max(0.0, began + (number + 1) * every_s - time.monotonic()))

    return await repeat(seconds, act)


async def change_tokens(port: int, seconds: float, who: Who, *, looks: bool = False, every_s: float = 0.0) -> int:
    """A user who makes and takes away tokens of his own, or looks at them, at most once every `every_s`."""

    async def act() -> AsyncIterator[None]:
        async with Admin(port) as admin:
            await admin.log_in(who)
            began = time.monotonic()
            for number in itertools.count():
                path = f"/v1/tokens/{number // 2:064x}"
                if looks:
                    await admin.ask("GET", f"/v1/tokens?user={who[0]}")
                elif number % 2:
                    await admin.ask("DELETE", path)
                else:
                    ends_ms = int(time.time() * 1000) + 3_600_000
                    await admin.ask("PUT", path, json={"user": who[0], "label": "x", "ends_ms": ends_ms})
                yield
                await asyncio.sleep(max(0.0, began + (number + 1) * every_s - time.monotonic()))

    return await repeat(seconds, act)


async def give_rules(port: int, user: Who, resources: list[str]) -> None:
    """Gives a user a rule for each resource, in few requests."""
    async with await Wire.dial(port) as wire:
        for begin in range(0, len(resources), 100):
            entries = [
                {"resource": each, "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
                for each in resources[begin : begin + 100]
            ]
            data = {"subject": f"User:{user[0]}", "policies": [{"policyType": "Custom", "entries": entries}]}
            body = json.dumps(data).encode()
            ext = Credentials(*ROOT).signed({"subject": f"User:{user[0]}"}, body)
            answer = await wire.ask(Code.AUTH_CREATE_ACL, ext, body)
            assert answer.code == 0, answer
