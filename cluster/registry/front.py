"""Serves the port of a registry process for clients. It has living nodes answer requests for routes (code 105) and for
the table of brokers (106).

The records have no queue counts, permissions, users or rules. So each request is passed on to a node unchanged, and its
answer is passed back unchanged: the node decides who is allowed to ask. Each client gets a connection of its own to a
node, because a node's answer depends on earlier requests of the connection. Any other request is refused with a remark
that names it. A broker registers (103) only at the peer port, with a proof of the cluster's secret
(`cluster.registry.registrations`).

While the process is not ready, requests are held for HOLD_S, and then answered with code 1 (SYSTEM_ERROR). Code 17
would tell clients that the topic does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from cluster.config.address import split_address
from raftlog.kept_errors import bare
from raftmq_wire.codec import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HEADER_AT,
    CodecError,
    Header,
    decode_header,
    encode_frame,
    ext_of,
)
from raftmq_wire.codes import RequestCode, ResponseCode, name_of_request

logger = logging.getLogger(__name__)

HOLD_S = 2.0
"""Seconds for which a request is held while the process is not ready."""
ANSWER_S = 2.5
"""Seconds in which nodes have to answer a request; clients wait for three seconds."""
DIAL_S = 0.7
"""Seconds within which a node must accept a connection; after that, the next node is dialled."""
REQUEST_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 16 << 20
FRAMES_MAX = 16
"""The most frames of a node that are read to find one answer: the node may send requests to its client first."""
CLIENTS_MAX = 1000
"""The most connections of clients; further ones are closed at once."""
IDLE_S = 130.0
"""Seconds without a request after which a connection ends; clients ask for routes every 30 s."""
REST_S = 10.0
"""Seconds within which a frame that has begun must be complete, and a client must take an answer."""
PASSED = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO})
REGISTER_BROKER = 103
NOT_READY = "name server not ready"


Nodes = Callable[[Collection[int]], Sequence[str]]
"""Returns the "host:port" of the listeners of living nodes: of the given groups, or of all groups if none is given."""


class RouteAsk(NamedTuple):
    """A request of a client, or a node's answer to it."""

    header: Header
    serialize_type: int
    frame: bytes
    """The whole frame as received, with its length prefix."""


class Front:
    """The port for clients of one registry process. Event loop only."""

    def __init__(
        self,
        ready: asyncio.Event,
        nodes: Nodes,
        groups_of: Callable[[str], Collection[int]],
        rng: random.Random,
        *,
        hold_s: float = HOLD_S,
        answer_s: float = ANSWER_S,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        """`groups_of` returns the groups that have a topic, as far as the registry knows. `rng` chooses the node that
        is asked first. `ready` is set when this process knows enough to answer. `nodes` returns the addresses of living
        nodes."""
        self._ready = ready
        self._nodes = nodes
        self._groups_of = groups_of
        self._rng = rng
        self._hold_s, self._answer_s, self._clients_max = hold_s, answer_s, clients_max
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens for clients. Raises OSError if the address cannot be bound."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        """Stops listening and closes all connections."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        upstream = Upstream(self._nodes, self._rng)
        try:
            if len(self._clients) >= self._clients_max:
                logger.warning("a connection is refused: %d clients are connected", self._clients_max)
                return
            self._clients.add(task)
            while (ask := await _read_request(reader)) is not None:
                answer = await self._answer(ask, upstream)
                if not ask.header.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
                    writer.write(answer)
                    await asyncio.wait_for(writer.drain(), REST_S)
        except (OSError, TimeoutError, EOFError, CodecError) as error:
            logger.debug("a connection of a client ends: %r", bare(error))
        except asyncio.CancelledError:
            pass  # this process ends; asyncio's stream callback would print a raised CancelledError as an error
        finally:
            self._clients.discard(task)
            upstream.leave()
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer(self, ask: RouteAsk, upstream: Upstream) -> bytes:
        code = ask.header.code
        if ask.header.flag & FLAG_RESPONSE:
            return b""
        if code not in PASSED:
            return _refused(ask, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _why_refused(code))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), self._hold_s)
        if not self._ready.is_set():
            return _refused(ask, ResponseCode.SYSTEM_ERROR, NOT_READY)
        try:
            async with asyncio.timeout(self._answer_s):
                answer = await upstream.ask(ask)
                if answer.header.code == ResponseCode.TOPIC_NOT_EXIST:
                    # This node's group may not have copied the topic yet, so a node of a group that has it is asked.
                    answer = await self._again(ask, upstream) or answer
                return answer.frame
        except (OSError, TimeoutError, EOFError, CodecError) as error:
            why = str(error) or "none has answered in time"
            return _refused(ask, ResponseCode.SYSTEM_ERROR, f"no node answers the name server now: {why}")

    async def _again(self, ask: RouteAsk, upstream: Upstream) -> RouteAsk | None:
        """Asks a node of a group that has the topic; returns its answer, or None if there is no such group or node, or
        it does not answer."""
        groups = self._groups_of(ext_of(ask.header).get("topic", ""))
        if not groups or not self._nodes(groups):
            return None
        upstream.leave()
        with contextlib.suppress(OSError, EOFError, CodecError):
            return await upstream.ask(ask, groups)
        return None


def _why_refused(code: int) -> str:
    name = name_of_request(code)
    if code == REGISTER_BROKER:
        return f"{name} is refused: brokers register at the peer port, with a proof of the secret"
    return f"the registry answers {' and '.join(name_of_request(each) for each in sorted(PASSED))}, not {name}"


def _refused(ask: RouteAsk, code: ResponseCode, remark: str) -> bytes:
    header, kind = ask.header, ask.serialize_type
    return encode_frame(
        code,
        header.opaque,
        FLAG_RESPONSE,
        remark=remark,
        serialize_type=kind,
        language="JAVA",
        reader=header.language,
    )


class Upstream:
    """A connection to a node, which carries the requests of one client. It is made when a request needs it."""

    def __init__(self, nodes: Nodes, rng: random.Random) -> None:
        self._nodes, self._rng = nodes, rng
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, ask: RouteAsk, within: Collection[int] = ()) -> RouteAsk:
        """Returns the answer of a node to the request `ask`. The first attempt uses an open connection; a new one goes
        to a node of the groups `within`, or of any group if `within` is empty. Raises OSError, EOFError or CodecError
        if no node answers. The caller limits the time."""
        last: Exception = ConnectionRefusedError("none is connected to it")
        if self._streams is not None:
            try:
                return await self._exchange(*self._streams, ask)
            except (OSError, EOFError, CodecError) as error:  # this node has gone: any other node can answer too
                last = bare(error)
            self.leave()
        nodes = list(self._nodes(within))
        self._rng.shuffle(nodes)
        for address in nodes:
            try:
                async with asyncio.timeout(DIAL_S):
                    self._streams = await asyncio.open_connection(*split_address(address), limit=ANSWER_BYTES_MAX)
                return await self._exchange(*self._streams, ask)
            except (OSError, TimeoutError, EOFError, CodecError) as error:
                self.leave()
                last = bare(error)
        raise last

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: RouteAsk) -> RouteAsk:
        try:
            writer.write(ask.frame)
            await writer.drain()
            for _ in range(FRAMES_MAX):
                answer = await _read_frame(reader, ANSWER_BYTES_MAX)
                header = answer.header
                if header.flag & FLAG_RESPONSE and header.opaque == ask.header.opaque:
                    return answer
            raise CodecError(f"{FRAMES_MAX} frames that answer something else")
        except BaseException:  # a late answer must not be taken for the answer to the next request
            self.leave()
            raise

    def leave(self) -> None:
        """Closes the connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> RouteAsk | None:
    """Returns the next request; None at the end of the stream. Raises OSError, EOFError, TimeoutError, CodecError."""
    try:
        return await _read_frame(reader, REQUEST_BYTES_MAX, IDLE_S)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None


async def _read_frame(reader: asyncio.StreamReader, limit: int, idle_s: float | None = None) -> RouteAsk:
    begun = await asyncio.wait_for(reader.readexactly(HEADER_AT), idle_s)
    size, kind, header_size = int.from_bytes(begun[:4]), begun[4], int.from_bytes(begun[5:HEADER_AT])
    if not 4 + header_size <= size <= limit:
        raise CodecError(f"a frame of {size} bytes with a header of {header_size}")
    rest = await asyncio.wait_for(reader.readexactly(size - 4), REST_S)
    return RouteAsk(decode_header(kind, rest[:header_size]), kind, begun + rest)
