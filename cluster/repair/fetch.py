"""Fetches data from a peer by name: for example pieces of its log, or files of a checkpoint.

  FETCH   [request id, what, [arguments]]
  FETCHED [request id, status, [fields], remark]   and a payload of at most PAYLOAD_MAX bytes

Both frames use the bulk channel. Nothing here depends on consensus, so a node can restore its state before its Raft
core runs. The requester verifies the data (CRCs, the chain of the log, a manifest) and never trusts it because of its
sender.

The serving side reads in a lane of its own and sends no faster than `[repair] bytes_per_second` to all peers together,
because a repair must not slow down healthy nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from cluster.config.local_layout import node_object
from cluster.peer.links import BURST_S, IDLE_MS, Lull
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import FrameHandlers
from cluster.runtime.lanes import LaneRunner, NeverIdle, StartedLane
from cluster.runtime.peer_frames import Kind, PeerLinks, WireError
from raftlog.types import FIRST_GROUP, NodeId

logger = logging.getLogger(__name__)

PAYLOAD_MAX = 1 << 20
"""The most bytes of payload in one reply."""
PIECE = 128 << 10
"""Bytes that one request of a background copy asks for: few, so that neither this node nor its peer is blocked for
long."""
BUSY_PAUSE_S = 0.2
"""Seconds until a busy peer is asked again, for example one that must make a checkpoint first."""
WRITING_SHARE = 4
"""The share of the bandwidth that peers get while this node writes, and for IDLE_MS after: one part in this many."""
REQUESTS_MAX = 4
"""Unanswered requests that one peer may have; further requests are answered BUSY."""
FIELDS_MAX = 32 << 10
"""Bytes of a reply's fields, packed."""
ARGUMENTS_MAX = 16
NAME_MAX = 32
CONNECT_POLL_S = 0.02
ANSWER_TRIES = 100
"""Attempts to send an answer to a peer that cannot be reached, before the answer is dropped."""
LOG, STATE = "log", "state"
"""Names of what can be fetched, with their arguments. `log`: [frame's position, bytes of it to skip, size]. `state`:
the arguments that its source describes (`log_source.py`)."""


class Status(IntEnum):
    """The outcome of a request. Values are on the wire: never renumber."""

    OK = 0
    MISSING = 1
    """The peer does not have the bytes, or they are damaged there too; the requester asks another peer."""
    BUSY = 2
    """The peer is busy; the requester should ask again after BUSY_PAUSE_S."""
    BAD = 3
    """The request is malformed or unknown to the peer's version."""
    FAILED = 4
    """The peer failed to read the bytes."""


class Fetched(NamedTuple):
    """The fields and the payload of a FETCHED frame that answers a request."""

    fields: list[Any]
    payload: bytes


class FetchError(Exception):
    """Raised when a fetch has failed; `status` is None if the peer did not answer at all."""

    def __init__(self, peer: NodeId, what: str, status: Status | None, remark: str, group: int = FIRST_GROUP) -> None:
        """`group`: the group of brokers of both nodes."""
        super().__init__(f"{node_object(group, peer)} does not give {what}: {remark}")
        self.peer = peer
        self.status = status
        self.remark = remark


class FetchRefused(Exception):
    """Raised by a source that has nothing to give."""

    def __init__(self, status: Status, remark: str) -> None:
        super().__init__(remark)
        self.status = status


AnswerSource = Callable[[list[Any]], Fetched]
"""A function that returns the answer to a request with these arguments. It may block. It raises FetchRefused to refuse.
A BlockingIOError becomes the answer BUSY, TypeError and ValueError become BAD, any other error FAILED."""
Answerer = Callable[[NodeId, list[Any]], Awaitable[list[Any]]]
"""A function that returns the fields of the answer to a peer's request, for work on the event loop. Its errors are
answered as those of an AnswerSource."""


class FetchJob(NamedTuple):
    """One request that waits for the lane."""

    peer: NodeId
    request_id: int
    what: str
    arguments: list[Any]


class FetchReply(NamedTuple):
    """The answer to a FetchJob."""

    job: FetchJob
    status: Status
    fetched: Fetched
    remark: str


NOTHING = Fetched([], b"")


class FetchLane(NeverIdle):
    """Reads the bytes that peers ask for. Never raises: a failed read becomes an answer."""

    def __init__(self, sources: Mapping[str, AnswerSource]) -> None:
        """`sources`: what -> the function that answers it. More may be added while the lane runs."""
        self._sources = sources

    def drain(self, batch: Sequence[FetchJob]) -> list[FetchReply]:
        """Returns the answer to each job, in their order."""
        return [self._answer(job) for job in batch]

    def _answer(self, job: FetchJob) -> FetchReply:
        source = self._sources.get(job.what)
        if source is None:
            return FetchReply(job, Status.BAD, NOTHING, f"this node gives no {job.what!r}")
        try:
            fetched = source(job.arguments)
        except Exception as error:  # noqa: BLE001 - a peer's request must not end this node
            return refused(job, error)
        if len(fetched.payload) > PAYLOAD_MAX or len(msgpack.packb(fetched.fields)) > FIELDS_MAX:
            return FetchReply(job, Status.FAILED, NOTHING, "the answer does not fit one reply")
        return FetchReply(job, Status.OK, fetched, "")


def refused(job: FetchJob, error: Exception) -> FetchReply:
    """Returns the answer to the request `job`, which failed with this error."""
    if isinstance(error, FetchRefused):
        return FetchReply(job, error.status, NOTHING, str(error)[:500])
    if isinstance(error, BlockingIOError):
        return FetchReply(job, Status.BUSY, NOTHING, str(error)[:500])
    if isinstance(error, (TypeError, ValueError)):
        return FetchReply(job, Status.BAD, NOTHING, f"malformed arguments: {error}"[:500])
    logger.warning("%s, which a peer requested, cannot be served: %s", job.what, error)
    return FetchReply(job, Status.FAILED, NOTHING, str(error)[:500])


class TokenBucket:
    """A budget of bytes per second. Unused bytes are saved up, but at most those of BURST_S seconds."""

    def __init__(self, bytes_per_second: int, now_s: float) -> None:
        self._rate = bytes_per_second
        self._level = bytes_per_second * BURST_S
        self._at = now_s

    def set_rate(self, bytes_per_second: int, now_s: float) -> None:
        """Sets the rate; the bytes saved up until `now_s` are computed with the former rate."""
        self._fill(now_s)
        self._rate = bytes_per_second

    def take(self, size: int, now_s: float) -> float:
        """Takes `size` bytes from the budget. Returns the seconds after which they may be sent."""
        self._fill(now_s)
        self._level -= size
        return max(0.0, -self._level / self._rate)

    def _fill(self, now_s: float) -> None:
        self._level = min(self._rate * BURST_S, self._level + (now_s - self._at) * self._rate)
        self._at = now_s


class FetchServer:
    """Answers fetch requests of peers. It runs on the event loop. Its sources, which read the disk, run on a worker
    thread (the lane)."""

    def __init__(
        self,
        transport: PeerLinks,
        loop: asyncio.AbstractEventLoop,
        bytes_per_second: int,
        last_index: Callable[[], int] = int,
        *,
        run: Callable[[FetchLane, Callable[[list[FetchReply]], None]], LaneRunner[FetchJob]],
    ) -> None:
        """`last_index()`: the last index of this node's log. While it grows, peers get one part in WRITING_SHARE of the
        bandwidth. `run` starts the lane when `start` is called, with the function that takes its completions."""
        self.sources: dict[str, AnswerSource] = {}
        """what -> the source that answers it, in the lane."""
        self.lane = FetchLane(self.sources)
        self._runner: StartedLane[FetchJob] = StartedLane(lambda: run(self.lane, self.on_done))
        self.answerers: dict[str, Answerer] = {}
        """what -> the function that answers it on the event loop."""
        self.bytes_sent = 0
        self._transport = transport
        self._loop = loop
        self._bytes_per_second = bytes_per_second
        self._bucket = TokenBucket(bytes_per_second, loop.time())
        self._lull = Lull(last_index, last_index())
        self._open: Counter[NodeId] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stops answering on the event loop."""
        for task in self._tasks:
            task.cancel()

    def reload(self, bytes_per_second: int) -> None:
        """Sets another limit, in bytes per second, for all peers together."""
        self._bytes_per_second = bytes_per_second

    def start(self) -> None:
        """Begins to run the lane."""
        self._runner.start()

    def close_lane(self) -> None:
        """Stops the lane; blocks until it has finished its current work."""
        self._runner.close()

    def on_frame(self, peer: NodeId, header: list[Any]) -> None:
        """Handles a FETCH frame: passes the request to its source or answerer, or answers BUSY if the peer has
        REQUESTS_MAX requests without an answer. Raises WireError if the frame is malformed."""
        job = decode_fetch(peer, header)
        if self._open[peer] >= REQUESTS_MAX:
            self._send(FetchReply(job, Status.BUSY, NOTHING, f"{REQUESTS_MAX} requests are not answered yet"))
            return  # if this answer cannot be sent, the peer's request times out, with the same effect
        self._open[peer] += 1
        answerer = self.answerers.get(job.what)
        if answerer is None:
            self._runner.submit(job)
            return
        task = self._loop.create_task(self._answer(job, answerer), name="answer a peer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, job: FetchJob, answerer: Answerer) -> None:
        try:
            reply = FetchReply(job, Status.OK, Fetched(await answerer(job.peer, job.arguments), b""), "")
        except Exception as error:  # noqa: BLE001 - a peer's request must not end this node
            reply = refused(job, error)
        self._finish(reply)

    def on_done(self, replies: Iterable[FetchReply]) -> None:
        """Sends the lane's answers, each as soon as the bandwidth allows."""
        now_s = self._loop.time()
        self._bucket.set_rate(self._rate(now_s), now_s)
        for reply in replies:
            delay_s = self._bucket.take(len(reply.fetched.payload), now_s)
            if delay_s > 0:
                self._loop.call_later(delay_s, self._finish, reply)
            else:
                self._finish(reply)

    def _rate(self, now_s: float) -> int:
        writing = self._lull.lasts(now_s) < IDLE_MS / 1000
        return self._bytes_per_second // WRITING_SHARE if writing else self._bytes_per_second

    def _finish(self, reply: FetchReply, tries: int = ANSWER_TRIES) -> None:
        """Sends an answer. If this node has no connection to the peer yet, as when the peer has just started, tries
        again later. `tries`: the attempts that are left."""
        if not self._send(reply) and tries > 1:
            self._loop.call_later(CONNECT_POLL_S, self._finish, reply, tries - 1)
            return
        self._open[reply.job.peer] -= 1

    def _send(self, reply: FetchReply) -> bool:
        fetched = reply.fetched
        header = [reply.job.request_id, int(reply.status), fetched.fields, reply.remark]
        sent = self._transport.send_frame(reply.job.peer, Kind.FETCHED, header, fetched.payload)
        self.bytes_sent += len(fetched.payload) if sent else 0
        return sent


class FetchClient:
    """Fetches from peers. Event loop only."""

    def __init__(self, transport: PeerLinks, loop: asyncio.AbstractEventLoop, group: int = FIRST_GROUP) -> None:
        """`group`: the group of brokers of this node and its peers."""
        self.group = group
        self.busy_pause_s = BUSY_PAUSE_S
        self.bytes_received = 0
        self._transport = transport
        self._loop = loop
        self._ids = transport.request_ids()
        self._waiting: dict[int, tuple[NodeId, str, asyncio.Future[Fetched]]] = {}

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        """Fetches `what` from `peer`; waits for a connection first if there is none. Raises FetchError."""
        request_id = next(self._ids)
        answer: asyncio.Future[Fetched] = self._loop.create_future()
        self._waiting[request_id] = peer, what, answer
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._transport.send_frame(peer, Kind.FETCH, [request_id, what, arguments], b""):  # noqa: ASYNC110
                    await asyncio.sleep(CONNECT_POLL_S)
                return await answer
        except TimeoutError:
            raise FetchError(peer, what, None, f"no answer within {timeout_ms} ms", self.group) from None
        finally:
            del self._waiting[request_id]
            # Marks the exception as retrieved: a caller that is cancelled at the moment when the connection closes
            # never reads it.
            if not answer.cancel() and not answer.cancelled():
                answer.exception()

    def on_frame(self, peer: NodeId, header: list[Any], payload: bytes) -> None:
        """Handles a FETCHED frame; drops it if the request has ended. Raises WireError if the frame is malformed."""
        request_id, status, fields, remark = decode_fetched(header)
        asked, what, answer = self._waiting.get(request_id, (None, "", None))
        if asked != peer or answer is None or answer.done():
            return
        self.bytes_received += len(payload)
        if status is Status.OK:
            answer.set_result(Fetched(fields, payload))
        else:
            answer.set_exception(FetchError(peer, what, status, remark, self.group))

    def peer_closed(self, peer: NodeId) -> None:
        """Fails the requests that this peer has not answered."""
        for asked, what, answer in list(self._waiting.values()):
            if asked == peer and not answer.done():
                answer.set_exception(FetchError(peer, what, None, "the connection closed", self.group))


def decode_fetch(peer: NodeId, header: list[Any]) -> FetchJob:
    """Returns the request in a FETCH frame. Raises WireError if it is malformed."""
    match header:
        case [int() as request_id, str() as what, list() as arguments] if (
            0 <= request_id < 1 << 63 and 0 < len(what) <= NAME_MAX and len(arguments) <= ARGUMENTS_MAX
        ):
            return FetchJob(peer, request_id, what, arguments)
    raise WireError(f"malformed fetch: {header!r:.100}")


def decode_fetched(header: list[Any]) -> tuple[int, Status, list[Any], str]:
    """Returns request id, status, fields and remark of a FETCHED frame. Raises WireError if it is malformed."""
    match header:
        case [int() as request_id, int() as status, list() as fields, str() as remark]:
            if status in Status.__members__.values():
                return request_id, Status(status), fields, remark
    raise WireError(f"malformed answer to a fetch: {header!r:.100}")


@asynccontextmanager
async def early_client(transport: PeerTransport, group: int = FIRST_GROUP) -> AsyncIterator[FetchClient]:
    """Yields a client that can fetch before the Raft core runs. It uses `transport`, which is started first and closed
    at the end.

    Raft messages that arrive meanwhile are dropped, as if the node were still down. Raises OSError as `start` does.
    """
    client = FetchClient(transport, asyncio.get_running_loop(), group)

    def on_frame(peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        if kind == Kind.FETCHED:
            client.on_frame(peer, header, payload)

    lost = client.peer_closed
    await transport.start(FrameHandlers(lambda _: None, lost, on_frame, frames_lost=lost))
    try:
        yield client
    finally:
        await transport.close()
