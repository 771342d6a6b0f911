"""The open loop of the benchmark beside peers: rates follow each system's own capacity, and every arrival has one
fate."""

from __future__ import annotations

import io
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.peers import fetch, loads, open_loop, plots, report
from bench.peers.nats import Nats
from bench.peers.open_loop import CAPACITY, SHARES, OpenTurn
from bench.peers.rounds import Field, Sample
from bench.peers.system import TOPIC, Generator, Load, Node
from raftmq.commands import bench_load
from raftmq.commands.bench_load import OPAQUE
from tests.bench.test_peer_rounds import FakeSystem


class Answering(socketserver.BaseRequestHandler):
    """Answers each send with the server's next code; a code of None is no answer."""

    def handle(self) -> None:
        stream = self.request.makefile("rb")
        while prefix := stream.read(4):
            found = OPAQUE.search(stream.read(int.from_bytes(prefix, "big")))
            assert found is not None
            codes: list[int | None] = self.server.codes  # type: ignore[attr-defined]
            codes.append(codes.pop(0))
            if codes[-1] is not None:
                header = b'{"code":%d,"flag":1,"opaque":%d,"version":477}' % (codes[-1], int(found[1]))
                sizes = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
                self.request.sendall(sizes + header)


class AnsweringSystem(FakeSystem):
    """Its leader is the server of this module."""

    def __init__(self, port: int, name: str = "fake") -> None:
        super().__init__(0, name=name)
        self._port = port

    @property
    def nodes(self) -> list[Node]:
        return [Node(0, self._port, 100)]

    def generator(self, load: Load) -> Generator:
        return bench_load.Load(TOPIC, 8, load.batch, load.in_flight, load.seconds)


@pytest.fixture
def server() -> Iterator[Any]:
    """A server that stores everything."""
    made = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering)
    made.codes = [0]  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


SOON_S = 0.3


def field_of(system: FakeSystem, *rates: float) -> Field:
    """The system's field, whose processes are fakes; it reached these rates with many in flight."""
    field = Field(system, warm_s=0.05, settle_s=SOON_S, leader_s=SOON_S, sync=lambda: None)  # type: ignore[arg-type]
    field.samples[Load(1024, 1, 1, 3.0)] = [Sample(7.0, 1.0, 1.0, 1.0, 0)]
    if rates:
        field.samples[Load(*CAPACITY, 3.0)] = [Sample(rate, 1.0, 1.0, 1.0, 0) for rate in rates]
    return field


def test_connections_have_equal_shares_of_what_is_in_flight(server: Any) -> None:
    system, asked = AnsweringSystem(server.server_address[1]), []

    def generator(load: Load) -> Generator:
        asked.append(load)
        return AnsweringSystem.generator(system, load)

    system.generator = generator  # type: ignore[method-assign]
    result = loads.run(system, system.leader(), Load(8, 1, 6, 0.0, 3))  # type: ignore[arg-type]
    assert asked == [Load(8, 1, 2, 0.0)] * 3
    assert (result.messages, result.errors, len(result.latencies_ms)) == (6, 0, 6)


def test_every_system_is_asked_at_shares_of_its_own_capacity(server: Any) -> None:
    port = server.server_address[1]
    told: list[str] = []
    fields = [
        field_of(AnsweringSystem(port, "quick"), 500.0, 400.0, 900.0),
        field_of(AnsweringSystem(port, "slow"), 100.0),
        field_of(AnsweringSystem(port, "unmeasured")),
    ]
    found = open_loop.play(fields, 2, 0.5, told.append, SOON_S)
    assert {name: [turn.rate for turn in turns] for name, turns in found.items()} == {
        "quick": [share * 500.0 for share in SHARES] * 2,
        "slow": [share * 100.0 for share in SHARES] * 2,
    }
    assert [text.rpartition(" ")[2] for text in told] == ["quick", "slow", "slow", "quick"]
    for turn in (turn for turns in found.values() for turn in turns):
        assert turn.arrivals == len(turn.latencies_ms)
        assert (turn.refused, turn.unknown) == (0, 0)
    assert [field.failed for field in fields] == ["", "", ""]
    assert [said for said in fields[0].system.processes.said if "resume" not in said] == ["pause"] * 2  # type: ignore[attr-defined]


def test_an_arrival_is_stored_or_refused_or_unknown(server: Any) -> None:
    server.codes = [0, 2, 0, None]
    system = AnsweringSystem(server.server_address[1])
    turn = open_loop.run(system, system.leader(), 0.5, 400.0, 0.5, 1, SOON_S)  # type: ignore[arg-type]
    fates = (len(turn.latencies_ms), turn.refused, turn.unknown)
    assert sum(fates) == turn.arrivals > 80
    assert all(abs(fate - turn.arrivals / 4 * times) < 3 for fate, times in zip(fates, (2, 1, 1), strict=True))


def test_a_system_that_is_gone_ends_and_the_others_go_on(server: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    fields = [
        field_of(AnsweringSystem(port, "gone"), 100.0),
        field_of(AnsweringSystem(server.server_address[1]), 100.0),
    ]
    found = open_loop.play(fields, 2, 0.1, lambda _: None, SOON_S)
    assert "refused" in fields[0].failed.lower()
    assert (len(found["gone"]), len(found["fake"])) == (0, 8)


def test_rows_have_the_latencies_of_all_rounds_together() -> None:
    turns = [OpenTurn(0.5, 50.0, 4, 1, 0, 1, [1.0, 2.0, 9.0]), OpenTurn(0.5, 50.0, 4, 0, 1, 0, [1.0, 2.0, 3.0])]
    (row,) = open_loop.rows({"raftmq": turns})
    assert row == {
        "system": "raftmq",
        "share": 0.5,
        "rate": 50,
        "arrivals": 8,
        "p50_ms": 2.0,
        "p99_ms": 9.0,
        "p999_ms": 9.0,
        "refused": 1,
        "unknown": 1,
        "late_share": 0.125,
    }
    result = report.document([], {}, [], {"p50_ms": 0.3}, {}, [row])
    out = io.StringIO()
    report.show(result, Console(width=140, file=out))
    assert "12.5%" in out.getvalue()
    (picture,) = plots.pictures(result)
    assert (picture.name, picture.bars[0].value) == ("open-0.5", 9.0)


def test_nats_syncs_each_message_only_if_it_is_told(tmp_path: Path) -> None:
    for syncs in (True, False):
        system = Nats("nats", fetch.NATS, syncs=syncs, binary=tmp_path / "nats")
        assert ("sync_interval: always" in system.configuration(0, 4222, tmp_path)) == syncs
        assert ("fsync every" in system.traits.durability) != syncs
