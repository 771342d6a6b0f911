"""Three simulated nodes as a stranger sees them: bytes go to a port, and bytes come back.

Nothing here reaches into a node. Time is virtual, latencies are constant and all randomness is seeded, so the same
requests get the same answers, byte for byte, on every tree whose nodes behave alike. `tests.support.recorded_answers`
uses it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import aiohttp
from aiohttp import web_app
from msgspec.structs import replace

from cluster.admin.server import AdminServer
from cluster.config.config import Config
from cluster.config.loading import load
from cluster.config.node_sections import Listener
from cluster.node.admin_wiring import admin_of
from cluster.node.node import Node
from jepsen_like.sim.machines.end_of_run import end_run
from jepsen_like.sim.machines.loop import Process, SimLoop
from jepsen_like.sim.machines.machine import DATA, LISTENERS, Machine, config_of, host_of
from jepsen_like.sim.machines.network import EdgeConditions, Endpoint, Network
from jepsen_like.sim.options import Options, calm, stream
from raftlog.types import NodeId
from raftmq_wire.codec import FLAG_RESPONSE, CodecError, decode_header, ext_of

SEED = 56
IDS = (NodeId(1), NodeId(2), NodeId(3))
HTTP_PORT = 9644
PORTS = {**LISTENERS, "http": HTTP_PORT}
"""Name of a port of a node -> its number."""
ROOT = ("root", "the-secret-of-root")
TOKEN = "tok-en-of-root-as-the-questions-have-it"
"""What stands in questions and answers for the token of ROOT, which each cluster draws anew."""
SLOT_S = 0.1
"""Requests begin at multiples of this many virtual seconds, so that one answer that takes a little longer moves no
later request."""
ANSWER_S = 3.0
"""Seconds after which a request counts as unanswered."""
LINGER_S = 0.02
"""Seconds for which more bytes are waited for after an answer."""
_LATENCY_S = (0.0005, 0.0005)
_EVENTS_MAX = 1 << 40
_STARTED_S = 60.0
_LOGINS_MAX = 20
_FIRST_USER = Path(tempfile.gettempdir()) / "raftmq-recorded-answers-first-user"
"""A file of the real disk. Answers name it, so its name is always the same."""


class Loop(SimLoop):
    """A simulated event loop that is moved on from outside."""

    def pass_time(self, seconds: float) -> None:
        """Lets so much virtual time pass."""
        self.call_outside(seconds, self.stop)
        self.run_forever()

    def wait(self, reached: Callable[[], object], limit_s: float, step_s: float = 0.005) -> bool:
        """Lets time pass until `reached` is true; returns False if it is not within `limit_s`."""
        end_s = self.now + limit_s
        while not reached():
            if self.now >= end_s:
                return False
            self.pass_time(step_s)
        return True

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Returns the address as it is: all names here are addresses."""
        return [(2, 1, 6, "", (host, port))]


class _Acceptor:
    """Stands for `cluster.runtime.tls.acceptor.Acceptor`, which needs real sockets."""

    def __init__(self, loop: Any, factory: Any, *_: Any) -> None:
        self._loop, self._factory = loop, factory
        self._server: Any = None

    async def open(self, host: str, port: int) -> None:
        self._server = await self._loop.create_server(self._factory, host, port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def _dial(
    self: aiohttp.TCPConnector, factory: Any, *, addr_infos: Any, req: Any, client_error: Any, **_: Any
) -> Any:
    """Stands for the part of aiohttp that makes real sockets."""
    host, port = addr_infos[0][4][:2]
    try:
        return await asyncio.get_running_loop().create_connection(factory, host, port)
    except OSError as error:
        raise client_error(req.connection_key, error) from error


class _Watcher:
    """Starts the HTTP API of a node that has started, and collects what went wrong."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.serving: dict[int, tuple[Process, AdminServer]] = {}
        """Node -> its process and its HTTP API, once that listens."""

    def started(self, machine: Machine) -> None:
        assert machine.process is not None
        machine.process.run(self._loop.create_task, self._serve(machine, machine.nodes[-1]))

    async def _serve(self, machine: Machine, node: Node) -> None:
        server = await admin_of(node.admin_port())
        await server.start()
        assert machine.process is not None
        self.serving[machine.node_id] = machine.process, server

    def broken(self, what: str, error: BaseException) -> None:
        self._loop.errors.append((what, error))

    def _ignore(self, *_: object) -> None:
        pass

    opened = closed = draining = drained = worked = reported = ended = retired = _ignore


class Heard(NamedTuple):
    """What a node did after a request: the bytes that it wrote, and if it closed the connection."""

    data: bytes
    is_closed: bool


class _Line(asyncio.Protocol):
    """One connection of a stranger."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.closed = False
        self.transport: Endpoint | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Endpoint, transport)

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


class AnsweringCluster:
    """The nodes, and a client machine. Use it through `answering_cluster`."""

    def __init__(self, *, has_users: bool) -> None:
        options = calm(
            seed=SEED, segment_size=4 << 20, latency_s=_LATENCY_S, disk_s=(0.0, 0.0), apply_s=(0.0, 0.0),
            users=1, config=1, checkpoint_every_ms=1 << 40,
        )  # fmt: skip
        self.loop = Loop(_EVENTS_MAX)
        self.network = Network(self.loop, EdgeConditions(stream(SEED, "network"), options.latency_s, 0.0))
        self._watcher: Any = _Watcher(self.loop)
        self._machines = {
            node: Machine(
                node, options, self.loop, self.network, self._watcher, _config(node, options, has_users=has_users)
            )
            for node in IDS
        }
        self._client = Process("client", "10.0.1.1")
        self._lines: dict[tuple[int, str], _Line] = {}
        self._token = ""
        self.leader = 0

    def start(self) -> None:
        """Starts the nodes; returns when all serve and node 1 leads. Raises RuntimeError."""
        for machine in self._machines.values():
            machine.start()
        if not self.loop.wait(lambda: len(self._watcher.serving) == len(IDS) and self._leads(), _STARTED_S, 0.1):
            raise RuntimeError(f"no leader after {_STARTED_S} s: {self.loop.errors}")
        if self.leader != IDS[0]:
            self.ask_json(self.leader, "POST", "/v1/leader/transfer", {"to": int(IDS[0])})
            self.loop.wait(lambda: self._leads() == IDS[0], _STARTED_S, 0.1)
        self.loop.pass_time(1.0)

    def _leads(self) -> int:
        """Returns the node that takes writes and that all follow; 0 if there is none."""
        views = [self.ask_json(node, "GET", "/v1/status") for node in IDS]
        leaders = {view.get("leader") for view in views}
        self.leader = (leaders.pop() or 0) if len(leaders) == 1 else 0
        return self.leader

    def end(self) -> None:
        """Ends all processes, after their HTTP APIs have closed what aiohttp would miss."""
        closing = [process.run(self.loop.create_task, api.close()) for process, api in self._watcher.serving.values()]
        self.loop.wait(lambda: all(task.done() for task in closing), _STARTED_S, 0.1)
        end_run(self.loop, self.network, self._machines.values(), [self._client])

    def ask(self, node: int, port: str, data: bytes, is_whole: Callable[[bytes], bool]) -> Heard:
        """Sends bytes on the connection to that port, a new one if there is none; returns what came until `is_whole` is
        true of it, or ANSWER_S passed, and shortly after."""
        loop = self.loop
        loop.pass_time(SLOT_S - loop.now % SLOT_S)
        line = self._line(node, port)
        if line.transport is not None and not line.closed:
            line.transport.write(data.replace(TOKEN.encode(), self._token.encode()) if self._token else data)
        loop.wait(lambda: line.closed or is_whole(bytes(line.heard)), ANSWER_S)
        loop.pass_time(LINGER_S)
        heard = Heard(bytes(line.heard), line.closed)
        line.heard.clear()
        return heard

    def _line(self, node: int, port: str) -> _Line:
        line = self._lines.get((node, port))
        if line is not None and not line.closed:
            return line
        self._lines[node, port] = line = _Line()

        async def dial() -> None:
            try:
                await self.loop.create_connection(lambda: line, host_of(node), PORTS[port])
            except OSError:
                line.closed = True

        self._client.run(self.loop.create_task, dial())
        self.loop.wait(lambda: line.closed or line.transport is not None, ANSWER_S, 0.001)
        return line

    def ask_json(self, node: int, method: str, path: str, body: Any = None) -> Any:
        """Asks the HTTP API; returns the answer's JSON, {} for an answer that is none."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        if self._token:
            head += f"Authorization: Bearer {self._token}\r\n"
        heard = self.ask(node, "http", f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data, is_http_whole)
        _, _, rest = heard.data.partition(b"\r\n\r\n")
        try:
            return json.loads(rest)
        except ValueError:
            return {}

    def enforce(self) -> None:
        """Waits for the first Super, ROOT, lets it log in, and has all requests judged. Raises RuntimeError."""
        name, secret = ROOT
        asked = {"user": name, "secret": secret, "answer": "token"}
        session: dict[str, Any] = {}
        for _ in range(_LOGINS_MAX):
            session = self.ask_json(self.leader, "POST", "/v1/session", asked)
            if "token" in session:
                break
            self.loop.pass_time(1.0)
        else:
            raise RuntimeError(f"nobody could log in: {session}")
        self._token = session["token"]
        self.ask_json(self.leader, "PUT", "/v1/auth", {"mode": "enforce"})
        self.loop.pass_time(1.0)

    def masked(self, text: str) -> str:
        """Returns the text without what is random."""
        return text.replace(self._token, TOKEN) if self._token else text


def _config(node: NodeId, options: Options, *, has_users: bool) -> Config:
    known = config_of(node, options)
    config = load(None, None, {"node.id": int(node), "node.data_dir": str(DATA), "raft.tick_ms": 100})
    host = host_of(node)
    listeners = tuple(
        Listener(name=name, bind=host, port=port, advertised=f"{host}:{port}") for name, port in LISTENERS.items()
    )
    return replace(
        config,
        peers=tuple(replace(peer, admin=f"{peer.host}:{HTTP_PORT}") for peer in known.peers),
        listeners=listeners,
        peer=known.peer,
        auth=replace(known.auth, first_user_file=str(_FIRST_USER) if has_users else ""),
        admin=replace(config.admin, bind=host, port=HTTP_PORT),
    )


@contextmanager
def answering_cluster(*, is_enforced: bool = False) -> Iterator[AnsweringCluster]:
    """Provides a cluster that is up. `is_enforced`: it has ROOT as its Super, and judges requests."""
    with (
        mock.patch("cluster.admin.server.Acceptor", _Acceptor),
        mock.patch.object(aiohttp.TCPConnector, "_wrap_create_connection", _dial),
        mock.patch.object(web_app, "_cached_build_middleware", web_app._build_middlewares),  # it keeps nodes for ever
    ):
        if is_enforced:
            _write_first_user()
        levels = _log_levels()
        made = AnsweringCluster(has_users=is_enforced)
        try:
            made.start()
            if is_enforced:
                made.enforce()
            yield made
        finally:
            made.end()
            _restore(levels)


def _log_levels() -> dict[str, int]:
    """Returns the level of each logger: nodes that are asked to change theirs change those of this process."""
    known = logging.root.manager.loggerDict.items()
    return {name: logger.level for name, logger in known if isinstance(logger, logging.Logger)}


def _restore(levels: dict[str, int]) -> None:
    for name in _log_levels():
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


def _write_first_user() -> None:
    """Makes the file of ROOT, at once and whole: other processes may record too."""
    written = _FIRST_USER.with_name(f"{_FIRST_USER.name}-{os.getpid()}")
    written.write_text("\n".join(ROOT))
    written.chmod(0o600)
    written.replace(_FIRST_USER)


def is_frame_whole(opaque: int) -> Callable[[bytes], bool]:
    """Returns a function that is true of bytes with the answer to that opaque; of nothing if it is negative."""

    def is_whole(data: bytes) -> bool:
        return any(frame.get("opaque") == opaque and frame.get("flag", 0) & FLAG_RESPONSE for frame in frames_in(data))

    return is_whole if opaque >= 0 else lambda _: True


def is_http_whole(data: bytes) -> bool:
    """Returns True if the bytes have a whole HTTP answer; the answer to a HEAD has no body, and counts as whole."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return False
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        return rest.endswith(b"0\r\n\r\n")
    return len(rest) >= int(fields.get(b"content-length", b"0"))


def frames_in(data: bytes) -> list[dict[str, Any]]:
    """Returns the frames as JSON; bytes that are none come last, as {"bytes": ...}."""
    frames: list[dict[str, Any]] = []
    at = 0
    while len(data) - at >= 8:
        stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
        header_end = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
        if stop > len(data) or header_end > stop:
            break
        try:
            header = decode_header(data[at + 4], data[at + 8 : header_end])
            frames.append(
                {
                    "code": header.code,
                    "opaque": header.opaque if header.flag & FLAG_RESPONSE else None,  # nodes count their own requests
                    "flag": header.flag,
                    "form": data[at + 4],
                    "language": header.language,
                    "version": header.version,
                    "remark": header.remark,
                    "ext": ext_of(header),
                    "body": as_text(data[header_end:stop]),
                }
            )
        except CodecError:
            break
        at = stop
    if at < len(data):
        frames.append({"bytes": as_text(data[at:])})
    return frames


def as_text(data: bytes) -> str:
    """Returns the bytes as text, those that are none as "base64:..."."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"
