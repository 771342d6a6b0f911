"""Fetching from peers: bounded; malformed frames are WireErrors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.peer.links import BURST_S
from cluster.peer.transport import Membership, PeerTransport
from cluster.peer.transport_options import FrameHandlers
from cluster.repair.fetch import (
    ANSWER_TRIES,
    CONNECT_POLL_S,
    PAYLOAD_MAX,
    REQUESTS_MAX,
    FetchClient,
    Fetched,
    FetchError,
    FetchRefused,
    FetchServer,
    Status,
    TokenBucket,
    decode_fetch,
    decode_fetched,
    early_client,
)
from cluster.runtime.lanes import ThreadLaneRunner
from cluster.runtime.peer_frames import Kind, WireError
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.rows import each_row

ONE, TWO = NodeId(1), NodeId(2)
UUIDS = {ONE: "uuid-1", TWO: "uuid-2"}
PATIENCE_MS = 20_000


class Serving:
    """A node that serves fetches and nothing else."""

    def __init__(self, transport: PeerTransport, bytes_per_second: int = 1 << 30) -> None:
        loop = asyncio.get_running_loop()
        self.transport = transport
        self.failures: list[BaseException] = []
        self.server = FetchServer(
            transport,
            loop,
            bytes_per_second,
            run=lambda lane, done: ThreadLaneRunner("fetch", lane, loop, done, self.failures.append),
        )
        self.server.start()

    async def start(self) -> None:
        await self.transport.start(FrameHandlers(lambda _: None, lambda _: None, self.on_frame))

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        assert kind == Kind.FETCH
        self.server.on_frame(peer, header)

    async def close(self) -> None:
        await self.transport.close()
        await asyncio.get_running_loop().run_in_executor(None, self.server.close_lane)
        assert self.failures == []


def transports() -> list[PeerTransport]:
    """Returns the transports of node 1 and node 2, not started."""
    base = free_base_port(2)
    addresses = {ONE: ("127.0.0.1", base), TWO: ("127.0.0.1", base + 1)}
    tried = {node: (at,) for node, at in addresses.items()}
    return [PeerTransport(Membership("c", 1, one, UUIDS[one], UUIDS), tried, addresses[one]) for one in UUIDS]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Serving, PeerTransport]]:
    """Node 2 serves; node 1's transport is not started."""
    one, two = transports()
    serving = Serving(two)
    yield serving, one
    await serving.close()


async def test_fields_and_payload_come_as_the_source_gave_them(pair: tuple[Serving, PeerTransport]) -> None:
    serving, transport = pair
    serving.server.sources["log"] = lambda arguments: Fetched(["end", *arguments], bytes(PAYLOAD_MAX))
    await serving.start()
    async with early_client(transport) as client:
        fetched = await client.fetch(TWO, "log", [5, 0, b"x"], PATIENCE_MS)
        assert fetched == Fetched(["end", 5, 0, b"x"], bytes(PAYLOAD_MAX))
        assert (client.bytes_received, serving.server.bytes_sent) == (PAYLOAD_MAX, PAYLOAD_MAX)


async def test_a_peer_that_comes_up_later_is_waited_for(pair: tuple[Serving, PeerTransport]) -> None:
    serving, transport = pair
    serving.server.sources["tail"] = lambda _: Fetched([1], b"")
    async with early_client(transport) as client:
        asked = asyncio.ensure_future(client.fetch(TWO, "tail", [], PATIENCE_MS))
        await asyncio.sleep(0.01)
        assert not asked.done()
        await serving.start()
        assert (await asked).fields == [1]


def refuse(_: list[Any]) -> Fetched:
    raise FetchRefused(Status.MISSING, "trimmed")


def break_down(_: list[Any]) -> Fetched:
    raise OSError("the disk is gone")


def need_two(arguments: list[Any]) -> Fetched:
    first, second = arguments
    return Fetched([first + second], b"")


@pytest.mark.parametrize(
    ("what", "arguments", "status", "remark"),
    [
        ("missing", [], Status.MISSING, "trimmed"),
        ("broken", [], Status.FAILED, "the disk is gone"),
        ("pair", [1], Status.BAD, "malformed arguments"),
        ("pair", [1, "x"], Status.BAD, "malformed arguments"),
        ("unknown", [], Status.BAD, "gives no 'unknown'"),
        ("large", [], Status.FAILED, "does not fit"),
        ("wordy", [], Status.FAILED, "does not fit"),
    ],
)
async def test_what_cannot_be_had_is_an_answer(
    pair: tuple[Serving, PeerTransport], what: str, arguments: list[Any], status: Status, remark: str
) -> None:
    serving, transport = pair
    serving.server.sources.update(
        missing=refuse,
        broken=break_down,
        pair=need_two,
        large=lambda _: Fetched([], bytes(PAYLOAD_MAX + 1)),
        wordy=lambda _: Fetched(["x" * 40_000], b""),
    )
    await serving.start()
    async with early_client(transport) as client:
        with pytest.raises(FetchError, match=remark) as caught:
            await client.fetch(TWO, what, arguments, PATIENCE_MS)
        assert (caught.value.status, caught.value.peer) == (status, TWO)
        assert (await client.fetch(TWO, "pair", [1, 2], PATIENCE_MS)).fields == [3]


async def test_a_peer_that_closes_ends_the_wait(pair: tuple[Serving, PeerTransport]) -> None:
    serving, transport = pair
    hold = asyncio.Event()
    loop = asyncio.get_running_loop()
    began = asyncio.Event()

    def wait(_: list[Any]) -> Fetched:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(hold.wait(), loop).result()
        return Fetched([], b"")

    serving.server.sources["slow"] = wait
    await serving.start()
    async with early_client(transport) as client:
        asked = asyncio.ensure_future(client.fetch(TWO, "slow", [], PATIENCE_MS))
        await began.wait()
        await serving.transport.close()
        with pytest.raises(FetchError, match="closed"):
            await asked
        hold.set()


async def test_no_answer_in_time_is_said_so() -> None:
    async with early_client(transports()[0]) as client:
        with pytest.raises(FetchError, match="no answer within 1 ms") as caught:
            await client.fetch(TWO, "log", [], 1)
        assert caught.value.status is None


class Recorded:
    """A transport that only remembers. `reaches`: the number of the first frame that reaches its peer."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, Kind, list[Any], bytes]] = []
        self.tried, self.reaches = 0, 1

    def send_frame(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        self.tried += 1
        if self.tried < self.reaches:
            return False
        self.sent.append((peer, kind, header, payload))
        return True

    def request_ids(self) -> Iterator[int]:
        return count(1)


class SteppedLoop:
    """Time and timers as the test wants them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.timers.append((self.now + delay_s, callback, arguments))


class Stepped:
    """A lane that runs when told to."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, job: Any) -> None:
        self.jobs.append(job)

    def close(self) -> None:
        """Nothing to do."""


def stepped_server(bytes_per_second: int) -> tuple[FetchServer, Recorded, SteppedLoop, Stepped]:
    transport, loop, runner = Recorded(), SteppedLoop(), Stepped()
    server = FetchServer(transport, loop, bytes_per_second, run=lambda lane, done: runner)  # type: ignore[arg-type]
    server.start()
    server.sources["log"] = lambda arguments: Fetched([], bytes(arguments[0]))
    return server, transport, loop, runner


def test_a_peer_has_few_requests_open_and_another_is_not_in_its_way() -> None:
    server, transport, _, runner = stepped_server(1 << 30)
    for request_id in range(REQUESTS_MAX + 2):
        server.on_frame(ONE, [request_id, "log", [1]])
    server.on_frame(TWO, [9, "log", [1]])
    assert [header[:2] for _, _, header, _ in transport.sent] == [[4, Status.BUSY], [5, Status.BUSY]]
    assert len(runner.jobs) == REQUESTS_MAX + 1
    server.on_done(server.lane.drain(runner.jobs))
    server.on_frame(ONE, [7, "log", [1]])
    assert transport.sent[-1][2][:2] == [9, Status.OK]
    assert len(runner.jobs) == REQUESTS_MAX + 2


@pytest.mark.parametrize("comes_at", [1, 7, ANSWER_TRIES, ANSWER_TRIES + 1])
def test_an_answer_waits_for_the_connection_and_not_for_ever(comes_at: int) -> None:
    server, transport, loop, runner = stepped_server(1 << 30)
    transport.reaches = comes_at
    server.on_frame(ONE, [1, "log", [10]])
    server.on_done(server.lane.drain(runner.jobs))
    while loop.timers:
        at, callback, arguments = loop.timers.pop()
        loop.now = at
        callback(*arguments)
    assert transport.tried == min(comes_at, ANSWER_TRIES)
    assert loop.now == pytest.approx((transport.tried - 1) * CONNECT_POLL_S)
    assert server.bytes_sent == (10 if comes_at <= ANSWER_TRIES else 0)


def test_replies_leave_no_faster_than_allowed() -> None:
    server, transport, loop, runner = stepped_server(1000)
    for request_id in range(3):
        server.on_frame(ONE, [request_id, "log", [800]])
    server.on_done(server.lane.drain(runner.jobs))
    assert transport.sent == []
    assert [round(at, 3) for at, _, _ in loop.timers] == [0.55, 1.35, 2.15], "a quarter of a second was saved up"
    for _, callback, arguments in loop.timers:
        callback(*arguments)
    assert server.bytes_sent == 2400


def test_while_something_is_written_less_is_given_away() -> None:
    transport, loop, runner, log = Recorded(), SteppedLoop(), Stepped(), [7]
    server = FetchServer(transport, loop, 1000, lambda: log[0], run=lambda lane, done: runner)  # type: ignore[arg-type]
    server.start()
    server.sources["log"] = lambda arguments: Fetched([], bytes(arguments[0]))

    def delay_s() -> float:
        """Returns the delay of a reply of 500 bytes when nothing is saved up."""
        server.on_frame(ONE, [len(loop.timers), "log", [500]])
        server.on_done(server.lane.drain(runner.jobs))
        runner.jobs.clear()
        begun, (loop.now, callback, arguments) = loop.now, loop.timers[-1]
        callback(*arguments)
        return round(loop.now - begun, 3)

    assert [delay_s(), delay_s()] == [0.25, 0.5], "a quarter of a second was saved up, and nobody writes"
    log[0] += 1
    assert delay_s() == 2.0, "a quarter of the bandwidth"
    assert delay_s() == 0.5, "for a second only"


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10)), max_size=30))
def test_the_bucket_never_gives_more_than_its_rate_and_what_is_saved(takes: list[tuple[int, float]]) -> None:
    bucket, now, total = TokenBucket(1000, 0.0), 0.0, 0
    for size, passed in takes:
        now += passed
        total += size
        ready_at = now + bucket.take(size, now)
        assert total <= 1000 * (ready_at + BURST_S) + 1e-3


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**64 - 1) | st.floats() | st.text(max_size=40) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)


@given(st.lists(values, max_size=5))
def test_any_header_is_a_fetch_or_a_wire_error(header: list[Any]) -> None:
    for decode in (lambda: decode_fetch(ONE, header), lambda: decode_fetched(header)):
        try:
            decoded = decode()
        except WireError:
            continue
        assert decoded[1] in (header[0], header[1])  # request id, or status


@given(st.integers(0, 2**63 - 1), st.text(min_size=1, max_size=32), st.lists(values, max_size=4))
def test_a_request_and_its_answer_come_back(request_id: int, what: str, fields: list[Any]) -> None:
    job = decode_fetch(ONE, [request_id, what, fields])
    assert (job.peer, job.request_id, job.what) == (ONE, request_id, what)
    assert decode_fetched([request_id, 1, fields, what])[:2] == (request_id, Status.MISSING)


@each_row("header", [[-1, "log", []], [1, "", []], [1, "x" * 33, []], [1, "log", [0] * 17], [1, "log"]])
def test_a_fetch_out_of_bounds_is_refused(header: list[Any]) -> None:
    with pytest.raises(WireError, match="malformed fetch"):
        decode_fetch(ONE, header)


async def test_an_answer_from_another_node_or_to_nobody_is_dropped() -> None:
    transport: Any = Recorded()
    client = FetchClient(transport, asyncio.get_running_loop())
    asked = asyncio.ensure_future(client.fetch(TWO, "log", [], PATIENCE_MS))
    await asyncio.sleep(0)
    request_id = transport.sent[0][2][0]
    client.on_frame(ONE, [request_id, 0, ["forged"], ""], b"forged")
    client.on_frame(TWO, [request_id + 1, 0, ["late"], ""], b"late")
    client.on_frame(TWO, [request_id, 0, ["true"], ""], b"true")
    client.on_frame(TWO, [request_id, 0, ["twice"], ""], b"twice")
    assert await asked == Fetched(["true"], b"true")
    assert client.bytes_received == 4


def test_a_fetch_that_failed_says_who_gave_what_and_why() -> None:
    assert str(FetchError(NodeId(2), "log", None, "no answer")) == "node 2 does not give log: no answer"
