"""Measures the latency that users experience: requests arrive by a schedule, in one run for each share of the capacity.

The capacity is measured first, as the rate of a closed loop with many requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import msgspec
import psutil
import uvloop

from raftmq.client.environment import REAL, Environment, with_credentials, with_tls
from raftmq.commands.bench_load import PATIENCE_S, Load, drive, itself
from raftmq.commands.open_arrivals import Arrivals, Second, percentile, seconds_of
from raftmq.commands.shared_options import connect, counted
from raftmq.local.cluster import LocalCluster
from raftmq.local.process import free_base_port
from raftmq_wire.errors import LocalError

CAPACITY_IN_FLIGHT = 512
PLACES = 20_000
"""The most requests of one run without an answer; further arrivals count as late. A prebuilt frame is kept for each."""
PLACES_BYTES = 256 << 20
"""The most bytes of the prebuilt frames."""
SEEDS_APART = 1000
REDIAL_S = 0.05
WARM_UP_S = 1.0
LATE_SHARE_MAX = 0.01
"""The share of late arrivals above which a run says more about the generator than about the cluster."""


class BenchTarget(msgspec.Struct, frozen=True):
    """The destination of the requests."""

    addresses: tuple[str, ...]
    """`host:port` of the clients' ports. The first one is the leader's; a lost connection tries the next."""
    topic: str
    queues: int = 4
    environment: Environment = REAL
    """The network, and the user who signs the requests."""


class Shape(msgspec.Struct, frozen=True):
    """The messages that arrive, and their schedule."""

    size_bytes: int = 1024
    seconds: float = 10.0
    connections: int = 4
    even: bool = False
    """True if requests arrive at equal intervals, False if at random ones, as those of independent users do."""
    seed: int = 1


class OpenRun(msgspec.Struct, frozen=True):
    """One run at one rate. Latencies are those of acknowledged requests, from the scheduled moment to the answer."""

    share: float
    """The share of the capacity; 0.0 if a rate was asked for."""
    rate: float
    """Scheduled requests per second."""
    arrivals: int
    stored: int
    """Requests that were acknowledged."""
    refused: dict[str, int]
    """Response code -> requests that were answered with it."""
    unknown: int
    """Requests without an answer (their connection was lost, or no answer came in time), and requests whose answer
    leaves open whether they are stored."""
    late: int
    """Arrivals that the generator itself sent more than a millisecond late."""
    latest_ms: float
    stored_per_second: float
    """Acknowledged requests, by the seconds of the schedule."""
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float
    seconds: list[Second]
    busy: float = 0.0
    """The share of the processors of the generator's machine that were busy, 0 to 1."""

    @property
    def late_share(self) -> float:
        """The share of arrivals that were late."""
        return self.late / self.arrivals if self.arrivals else 0.0


class OpenReport(msgspec.Struct, frozen=True):
    """The output of `raftmq bench open --json`."""

    schema: int
    shape: Shape
    capacity: float
    """Messages per second of the closed loop; 0.0 if it was not measured."""
    load_before: tuple[float, float, float]
    """The machine's load averages before the measurement began, which should be low."""
    runs: list[OpenRun]
    capacity_busy: float = 0.0
    """The share of the processors that were busy in the closed loop."""


def measure(
    target: BenchTarget,
    shape: Shape,
    shares: Sequence[float],
    rates: Sequence[float],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> OpenReport:
    """Measures the capacity, if there are `shares` of it, and then one run for each share and each rate. Raises
    LocalError."""
    before = os.getloadavg()
    capacity = busy = 0.0
    asked = [(0.0, rate) for rate in rates]
    if shares:
        closed(target, shape, WARM_UP_S)
        on_stage(f"capacity: {CAPACITY_IN_FLIGHT} in flight")
        since_last_busy()
        capacity = closed(target, shape, min(shape.seconds, 5.0))
        busy = since_last_busy()
        asked = [(share, share * capacity) for share in shares] + asked
    runs = []
    for share, rate in asked:
        on_stage(f"{rate:,.0f} messages/s" + (f", {share:g} of the capacity" if share else ""))
        runs.append(play(target, shape, rate, share))
    return OpenReport(1, shape, capacity, before, runs, busy)


def since_last_busy() -> float:
    """Returns the share of this machine's processors that were busy since the last call, 0 to 1."""
    return round(float(psutil.cpu_percent()) / 100, 3)


def closed(target: BenchTarget, shape: Shape, seconds: float) -> float:
    """Returns the acknowledged messages per second of a closed loop. Raises LocalError."""
    with _told(target), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loads = runner.run(_closed(target, shape, seconds))
    stored, errors = sum(load.acked for load in loads), sum(load.errors for load in loads)
    if not stored:
        raise LocalError(
            f"{target.addresses[0]} stored none of {counted(errors)}",
            f"topic {target.topic} may be closed to this user, or to writes",
            f"raftmq produce {target.topic}    (it says why)",
        )
    return stored / max(load.elapsed for load in loads)


async def _closed(target: BenchTarget, shape: Shape, seconds: float) -> list[Load]:
    in_flight = max(1, CAPACITY_IN_FLIGHT // shape.connections)
    loads = [_load(target, shape, in_flight, seconds) for _ in range(shape.connections)]
    try:
        await drive(loads, target.environment.dial, *_split(target.addresses[0]), seconds + PATIENCE_S)
    finally:
        await _gone(target)
    return loads


async def _gone(target: BenchTarget) -> None:
    """Waits until closed connections are gone."""
    await asyncio.sleep(0)
    if target.environment.ended is not None:
        await target.environment.ended()


def _load(target: BenchTarget, shape: Shape, places: int, seconds: float, arrivals: Arrivals | None = None) -> Load:
    credentials = target.environment.credentials
    return Load(target.topic, shape.size_bytes, 1, places, seconds, "", target.queues, credentials, arrivals)


def play(
    target: BenchTarget,
    shape: Shape,
    rate: float,
    share: float = 0.0,
    *,
    places_max: int = PLACES,
    patience_s: float = PATIENCE_S,
) -> OpenRun:
    """Plays one run. `rate`: requests per second; `share`: the share of the capacity that this is, for the report.
    `places_max`: the most requests without an answer; `patience_s`: seconds to wait for answers at the end. Raises
    LocalError."""
    since_last_busy()
    with _told(target), asyncio.Runner(loop_factory=precise_loop) as runner:
        runs = runner.run(arrive(target, shape, rate, places_max=places_max, patience_s=patience_s))
    busy = since_last_busy()
    took = sorted(latency for each in runs for _, latency in each.stored)
    codes = sum((each.codes for each in runs), Counter[int]())
    arrivals = sum(len(each.scheduled) for each in runs)
    return OpenRun(
        share,
        round(rate, 1),
        arrivals,
        len(took),
        {str(code): number for code, number in sorted(codes.items())},
        arrivals - len(took) - codes.total(),
        sum(len(each.late) for each in runs),
        round(max(each.latest_s for each in runs) * 1000, 3),
        round(len(took) / shape.seconds, 1),
        round(percentile(took, 0.5), 3),
        round(percentile(took, 0.9), 3),
        round(percentile(took, 0.99), 3),
        round(percentile(took, 0.999), 3),
        round(took[-1], 3) if took else 0.0,
        seconds_of(runs),
        busy,
    )


async def arrive(
    target: BenchTarget, shape: Shape, rate: float, *, places_max: int = PLACES, patience_s: float = PATIENCE_S
) -> list[Arrivals]:
    """Plays one run in a `precise_loop`; returns the schedule and the outcomes of each connection. Arguments as for
    `play`. Raises OSError."""
    frame_bytes = shape.size_bytes + 512
    places = max(1, min(places_max, PLACES_BYTES // frame_bytes) // shape.connections)
    loads = []
    for number in range(shape.connections):
        seed = shape.seed * SEEDS_APART + number
        arrivals = Arrivals(rate / shape.connections, shape.seconds, seed, even=shape.even)
        loads.append(_load(target, shape, places, shape.seconds, arrivals))
    keepers = [asyncio.ensure_future(_keep(load, target)) for load in loads]
    try:
        await asyncio.wait_for(asyncio.gather(*(load.done for load in loads)), shape.seconds + patience_s)
    except TimeoutError:
        pass  # a request without an answer has an unknown outcome
    finally:
        for keeper in keepers:
            keeper.cancel()
        results = await asyncio.gather(*keepers, return_exceptions=True)
        await _gone(target)
        for result in results:
            if isinstance(result, Exception):
                raise result
    return [load.arrivals for load in loads if load.arrivals is not None]


async def _keep(load: Load, target: BenchTarget) -> None:
    """Keeps a connection open until the run ends, and redials if it is lost. Raises OSError if none of the addresses
    accepted a first connection."""
    assert load.arrivals is not None
    number, had_one = 0, False
    while True:
        address = _split(target.addresses[number % len(target.addresses)])
        number += 1
        try:
            await target.environment.dial(*address, partial(itself, load))
        except OSError:
            if not had_one and number >= len(target.addresses):
                load.done.cancel()
                raise
            await asyncio.sleep(REDIAL_S)
            continue
        had_one = True
        try:
            await load.arrivals.ended.wait()
        finally:
            load.transport.abort()


def precise_loop() -> asyncio.AbstractEventLoop:
    """Returns a loop whose timers have a resolution of microseconds. epoll, and so libuv, rounds to milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def _told(target: BenchTarget) -> Iterator[None]:
    """Turns errors of a connection into a LocalError for people."""
    try:
        yield
    except (OSError, asyncio.CancelledError) as error:
        raise LocalError(
            f"no load could be put on {target.addresses[0]}",
            str(error) or type(error).__name__,
            "raftmq status    (is it running?)",
        ) from error


@contextlib.contextmanager
def three_nodes(place: Path | None, topic: str, *, secured: bool) -> Iterator[BenchTarget]:
    """Runs three nodes in a temporary directory (below `place`), which is removed with them."""
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=place) as directory:
        cluster = LocalCluster(Path(directory) / "cluster")
        view = cluster.up(3, free_base_port(12), tls=secured, auth=secured)
        try:
            nodes = sorted(cluster.nodes, key=lambda node: node.id != view.leader)
            options = cluster.client_options
            signing = with_credentials(REAL, options.get("access_key", ""), options.get("secret_key", ""))
            environment = with_tls(signing, options.get("tls"))
            yield BenchTarget(tuple(f"127.0.0.1:{node.broker_port}" for node in nodes), topic, environment=environment)
        finally:
            cluster.down()


@contextlib.contextmanager
def named(servers: str | None, topic: str) -> Iterator[BenchTarget]:
    """Yields the cluster that the command's options name, after sending a first message to the topic, which creates the
    topic if that is allowed. Raises LocalError, and RaftMQError if that message is not stored."""
    with connect(servers) as client:
        client.send(topic, b"bench")
        leader = client.contact(PATIENCE_S).leader
        others = [server for server in client.servers if server != leader]
        yield BenchTarget((leader, *others) if leader else tuple(others), topic, environment=client.environment)


def drawn(report: OpenReport, file: Path, names: Sequence[str] = ()) -> None:
    """Draws every run over its seconds: arrivals, acknowledged and refused requests, p50 and p99. The file name's
    suffix chooses the format. `names`: the titles of the runs. Raises LocalError if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LocalError(
            "plots need matplotlib",
            str(error),
            'pip install "raftmq-server[spark]"    (it has it), or leave --plot out',
        ) from error
    figure = Figure(figsize=(11, 2.6 * len(report.runs) + 0.6), layout="constrained")
    axes = figure.subplots(len(report.runs), 2, squeeze=False)
    for (rates, latencies), one, name in zip_longest(axes, report.runs, names):
        seconds = range(len(one.seconds))
        rates.plot(seconds, [each.arrivals for each in one.seconds], label="scheduled", color="0.6")
        rates.plot(seconds, [each.stored for each in one.seconds], label="acknowledged")
        rates.plot(seconds, [each.refused for each in one.seconds], label="refused")
        rates.set_ylabel("messages/s")
        rates.set_ylim(bottom=0)
        rates.legend(loc="lower right", fontsize=8)
        share = f"{one.share:g} of the capacity" if one.share else ""
        rates.set_title(", ".join(filter(None, (f"{one.rate:,.0f} messages/s", share, name))))
        latencies.plot(seconds, [each.p50_ms or None for each in one.seconds], label="p50")
        latencies.plot(seconds, [each.p99_ms or None for each in one.seconds], label="p99")
        latencies.set_yscale("log")
        latencies.set_ylabel("ms from the scheduled moment")
        latencies.legend(loc="upper right", fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "raftmq"}):
        figure.savefig(file)
