"""`raftmq bench open`: arrivals keep to their schedule whatever the server does, and each has exactly one fate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raftmq.cli import run as run_cli
from raftmq.commands.bench import bench
from raftmq.commands.bench_load import OPAQUE, refusals
from raftmq.commands.bench_open import BenchTarget, OpenRun, Shape, play
from raftmq.commands.open_arrivals import UNKNOWN, Arrivals, Second, seconds_of
from raftmq_wire.codec import FLAG_RESPONSE, encode_frame
from raftmq_wire.codes import UNKNOWN_REMARK, is_unknown
from tests.support.live_nodes import LiveCluster, live_cluster
from tests.support.plain_server import serving

__all__ = ["live_cluster"]

STALL_S = 0.4


def answer(opaque: int, code: int = 0) -> bytes:
    header = b'{"code":%d,"flag":1,"language":"JAVA","opaque":%d,"version":477}' % (code, opaque)
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


Handle = Callable[[int, asyncio.StreamWriter], None]


@asynccontextmanager
async def server(handle: Handle, *, stall_at: int = 0) -> AsyncIterator[tuple[str, list[int]]]:
    """Yields the address of a server that calls `handle` for each request, with its number, and the opaques that it has
    seen. It reads nothing for STALL_S before request number `stall_at`."""
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                found = OPAQUE.search(frame)
                assert found is not None
                seen.append(int(found[1]))
                if len(seen) == stall_at:
                    await asyncio.sleep(STALL_S)
                handle(int(found[1]), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with serving(serve) as (host, port):
        yield f"{host}:{port}", seen


async def played(handle: Handle, shape: Shape, rate: float, *, stall_at: int = 0, **limits: Any) -> OpenRun:
    async with server(handle, stall_at=stall_at) as (address, _):
        return await asyncio.to_thread(play, BenchTarget((address,), "T"), shape, rate, **limits)


def stored(opaque: int, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(opaque))


async def test_every_arrival_is_stored_if_the_server_stores_all() -> None:
    run = await played(stored, Shape(10, 1.0, 3), 300)
    assert run.arrivals == run.stored > 100
    assert (run.refused, run.unknown) == ({}, 0)
    assert sum(each.arrivals for each in run.seconds) == sum(each.stored for each in run.seconds) == run.arrivals


async def test_a_stall_of_the_server_delays_all_that_was_scheduled_in_it() -> None:
    """A closed loop would show one slow request for each place in its window."""
    run = await played(stored, Shape(10, 1.0, 1, even=True), 200, stall_at=40)
    assert run.stored == run.arrivals
    assert run.longest_ms > STALL_S * 900
    assert run.p90_ms > STALL_S * 250, "a fifth of all requests were scheduled within the stall's first half"


async def test_a_refusal_is_no_latency_and_keeps_its_code() -> None:
    count = 0

    def every_third(opaque: int, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.write(answer(opaque, 2 if count % 3 == 0 else 0))

    run = await played(every_third, Shape(10, 0.5, 1), 400)
    assert run.refused == {"2": run.arrivals // 3}
    assert run.stored == run.arrivals - run.arrivals // 3


async def test_what_a_lost_connection_leaves_open_is_unknown_and_the_schedule_goes_on() -> None:
    count = 0

    def cut_once(opaque: int, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count == 30:
            writer.transport.abort()
        elif count != 29:
            writer.write(answer(opaque))

    run = await played(cut_once, Shape(10, 1.0, 1), 200)
    assert run.unknown >= 2
    assert run.stored + run.unknown == run.arrivals
    assert run.arrivals > 100, "requests go on arriving on the next connection"


async def test_an_unanswered_request_ends_the_run_as_unknown() -> None:
    run = await played(lambda opaque, writer: None, Shape(10, 0.2, 1), 100, patience_s=0.2)
    assert run.unknown == run.arrivals > 0


async def test_places_are_the_most_without_an_answer() -> None:
    run = await played(stored, Shape(10, 0.5, 1, even=True), 400, stall_at=10, places_max=4)
    assert run.arrivals == run.stored
    assert run.late > 50, "those that found no place were sent late"


def test_the_schedule_follows_the_seed() -> None:
    async def scheduled(seed: int, *, even: bool = False) -> list[float]:
        arrivals = Arrivals(1000, 0.05, seed, even=even)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        arrivals.begin(1000, lambda places: arrivals.answered(places, 0, {}, 0.0), done)
        await done
        return arrivals.scheduled

    assert asyncio.run(scheduled(1)) == pytest.approx(asyncio.run(scheduled(1)))
    assert asyncio.run(scheduled(1)) != pytest.approx(asyncio.run(scheduled(2)))
    assert len(asyncio.run(scheduled(1, even=True))) in (49, 50)


def test_seconds_of_several_connections() -> None:
    one, other = Arrivals(1, 1, 1), Arrivals(1, 1, 2)
    one.scheduled, one.late, one.stored = [0.1, 1.5], [1.5], [(0.2, 100.0)]
    other.scheduled, other.refused = [0.3], [(2.1, 5.0)]
    assert seconds_of([one, other]) == [
        Second(2, 0, 1, 0, 100.0, 100.0),
        Second(1, 1, 0, 0, 0.0, 0.0),
        Second(0, 0, 0, 1, 0.0, 0.0),
    ]


def test_refusals_have_their_own_code() -> None:
    frames = answer(7) + answer(8, 2) + answer(123, 14)
    assert refusals(frames, len(frames)) == {8: 2, 123: 14}


@pytest.mark.parametrize(
    ("code", "remark", "found"),
    [
        (1, f"{UNKNOWN_REMARK} the leader did not answer", UNKNOWN),
        (1, "a broken disk", 1),
        (1, f"it told {UNKNOWN_REMARK}", 1),
        (2, f"{UNKNOWN_REMARK} of no code that may be unknown", 2),
    ],
)
def test_an_answer_that_leaves_the_outcome_open_is_no_refusal(code: int, remark: str, found: int) -> None:
    frames = answer(7) + encode_frame(code, 8, FLAG_RESPONSE, remark=remark) + answer(9, 2)
    assert refusals(frames, len(frames)) == {8: found, 9: 2}
    assert (found == UNKNOWN) == is_unknown(code, remark)


async def test_what_a_node_leaves_open_counts_as_unknown() -> None:
    count = 0

    def every_third(opaque: int, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        open_answer = encode_frame(1, opaque, FLAG_RESPONSE, remark=f"{UNKNOWN_REMARK} it may be stored")
        writer.write(answer(opaque) if count % 3 else open_answer)

    run = await played(every_third, Shape(10, 0.5, 1), 400)
    assert (run.refused, run.unknown) == ({}, run.arrivals // 3)
    assert run.stored == run.arrivals - run.unknown


@pytest.mark.live
def test_of_a_cluster_that_runs(live_cluster: LiveCluster, tmp_path: Path) -> None:
    live_cluster.leader()
    plot = tmp_path / "open.svg"
    asked = [
        "open",
        "--servers",
        live_cluster.servers,
        "--rate",
        "100",
        "--seconds",
        "1",
        "--plot",
        str(plot),
        "--json",
    ]
    done = CliRunner().invoke(bench, asked)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (run,) = report["runs"]
    assert run["stored"] == run["arrivals"] > 50
    assert report["capacity"] == 0
    assert "<svg" in plot.read_text()
    topics = live_cluster.ask(1, "/v1/topics")["topics"]
    assert [each["messages"] for each in topics if each["name"] == "bench"] == [run["stored"] + 1]


@pytest.mark.ci
def test_of_three_nodes_of_its_own(tmp_path: Path) -> None:
    asked = ["open", "--dir", str(tmp_path), "--share", "0.1", "--seconds", "1", "--secured"]
    done = CliRunner().invoke(bench, asked, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "of capacity" in done.output
    assert "capacity: " in done.output
    assert not list(tmp_path.iterdir())


def test_mistakes_are_told_before_anything_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["bench", "open", "--plot", str(tmp_path / "a.txt")]) == 2
    assert "ends with none of .svg, .png, .pdf" in capfd.readouterr().err
    assert run_cli(["bench", "open", "--servers", "127.0.0.1:1", "--rate", "10"]) == 4
    assert "no server of the cluster can be reached" in capfd.readouterr().err
