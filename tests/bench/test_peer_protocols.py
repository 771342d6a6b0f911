"""The load generators for NATS, etcd and pysyncobj: bytes as servers send them, cut anywhere; the window stays full."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from bench.peers import grpc, pysyncobj
from bench.peers.etcd import PUT, put, transaction
from bench.peers.grpc import UnaryCalls, frame
from bench.peers.nats import Publisher
from bench.peers.pysyncobj import ANSWER, ASK, FRAME, Proposer
from bench.peers.system import Load
from raftmq.commands import bench_load
from raftmq.commands.bench_load import PREFIX
from tests.support.pace import at_most

LOAD = Load(8, 1, 2, 0.0)
"""Two messages of eight bytes, and no more after the first answer."""
ENDLESS = LOAD._replace(seconds=600.0)


class Wire:
    """A transport that keeps what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


def connect(window: bench_load.Window) -> Wire:
    wire = Wire()
    window.connection_made(cast(Any, wire))  # a transport as far as a window uses one
    return wire


def feed(window: bench_load.Window, data: bytes, cut: int) -> None:
    """Hands the data over in pieces of `cut` bytes."""
    for at in range(0, len(data), cut):
        window.data_received(data[at : at + cut])


def published(to: Publisher, place: int, answer: bytes = b'{"stream":"bench","seq":1}') -> bytes:
    return b"MSG %s%d 1 %d\r\n%s\r\n" % (to.inbox, place, len(answer), answer)


async def greeted(load: Load) -> tuple[Publisher, Wire]:
    publisher = Publisher(load)
    wire = connect(publisher)
    assert wire.take().endswith(b"PING\r\n")
    publisher.data_received(b'INFO {"server_id":"X"}\r\nPONG\r\n')
    return publisher, wire


async def test_nats_publishes_when_it_was_greeted() -> None:
    publisher, wire = await greeted(LOAD)
    body = bytes(range(8))
    assert wire.take() == b"".join(
        b"PUB bench %s%d 8\r\n%s\r\n" % (publisher.inbox, place, body) for place in range(LOAD.in_flight)
    )


async def test_each_nats_connection_has_answers_of_its_own() -> None:
    """A server sends an answer to everybody who listens to its subject."""
    publisher, other = Publisher(LOAD), Publisher(LOAD)
    wire = connect(publisher)
    assert b"SUB %s* 1\r\n" % publisher.inbox in wire.take()
    assert publisher.inbox.startswith(b"_INBOX.")
    assert not publisher.inbox.startswith(other.inbox)
    assert not other.inbox.startswith(publisher.inbox)


@pytest.mark.parametrize("cut", [1, 7, 1000])
async def test_nats_answers_are_counted(cut: int) -> None:
    publisher, wire = await greeted(LOAD)
    wire.take()
    feed(publisher, published(publisher, 1) + b"PING\r\n" + published(publisher, 0, b'{"error":{"code":503}}'), cut)
    await publisher.done
    assert (publisher.acked, publisher.errors, len(publisher.latencies)) == (1, 1, 2)
    assert wire.take() == b"PONG\r\n"


@pytest.mark.parametrize("cut", [1, 7, 30, 1000])
async def test_nats_answers_beside_other_lines_are_counted_once(cut: int) -> None:
    """News of the cluster may come at any time, and an answer may be cut between its line and its JSON."""
    publisher, wire = await greeted(LOAD)
    wire.take()
    answers = published(publisher, 1), published(publisher, 0)
    feed(publisher, b'INFO {"server_id":"Y"}\r\n' + answers[0] + b"PING\r\nPING\r\n" + answers[1], cut)
    await publisher.done
    assert (publisher.acked, publisher.errors) == (2, 0)
    assert wire.take() == b"PONG\r\n" * 2


async def test_nats_keeps_its_window_full() -> None:
    publisher, wire = await greeted(ENDLESS)
    wire.take()
    publisher.data_received(published(publisher, 1))
    assert wire.take().startswith(b"PUB bench %s1 8\r\n" % publisher.inbox)
    assert not publisher.done.done()


async def test_nats_error_ends_the_run() -> None:
    publisher, wire = await greeted(ENDLESS)
    publisher.data_received(b"-ERR 'Maximum Payload Violation'\r\n")
    with pytest.raises(ConnectionError, match="Maximum Payload"):
        await publisher.done
    assert wire.closed


async def test_a_connection_that_is_lost_ends_the_run() -> None:
    publisher, _ = await greeted(ENDLESS)
    publisher.connection_lost(None)
    with pytest.raises(ConnectionError):
        await publisher.done


def replied(opaque: int, code: int = 0) -> bytes:
    """Returns a broker's answer to a send."""
    header = b'{"code":%d,"extFields":{"queueOffset":"7"},"flag":1,"opaque":%d,"version":477}' % (code, opaque)
    return PREFIX.pack(4 + len(header), len(header)) + header


def sends(seconds: float, in_flight: int = 2) -> tuple[bench_load.Load, Wire]:
    load = bench_load.Load("bench", 8, 1, in_flight, seconds)
    return load, connect(load)


@pytest.mark.parametrize("cut", [1, 7, 1000])
async def test_rocketmq_answers_are_counted(cut: int) -> None:
    load, _ = sends(0.0)
    feed(load, replied(1) + replied(0, code=14), cut)
    await load.done
    assert (load.acked, load.errors, len(load.latencies)) == (1, 1, 2)


@pytest.mark.parametrize("answered", [[1], [2, 0], [2, 0, 1]])
async def test_rocketmq_keeps_its_window_full(answered: list[int]) -> None:
    load, wire = sends(600.0, in_flight=3)
    requests = [bench_load.request_frame("bench", place, place, 1, bytes(range(8))) for place in range(3)]
    assert wire.take() == b"".join(requests)
    load.data_received(b"".join(map(replied, answered)))
    assert sorted(wire.take().split(requests[0][:4])[1:]) == sorted(requests[place][4:] for place in answered)
    assert not load.done.done()


def test_a_result_is_not_written_out() -> None:
    """A run would end with seconds of it."""
    assert len(repr(bench_load.Result(1, 1.0, [0.123] * 1000, 0))) < 100


async def test_an_answer_that_names_no_request_ends_the_run() -> None:
    load, wire = sends(600.0)
    load.data_received(replied(1).replace(b"opaque", b"opaq_e"))
    with pytest.raises(ConnectionError, match="1 answers with 0 opaques"):
        await load.done
    assert wire.closed


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(type, flags, stream, payload) of each."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
        found.append((kind, flags, stream, data[at + 9 : at + 9 + length]))
        at += 9 + length
    assert at == len(data), "frames are whole"
    return found


def answer(stream: int) -> bytes:
    """Returns etcd's frames for a put: headers, a message, trailers."""
    return (
        frame(grpc.HEADERS, grpc.END_HEADERS, stream, b"\x88")
        + frame(grpc.DATA, 0, stream, b"\x00\x00\x00\x00\x02\x0a\x00")
        + frame(grpc.HEADERS, grpc.END_HEADERS | grpc.END_STREAM, stream, b"\x40")
    )


def refusal(stream: int) -> bytes:
    """A call that failed: trailers alone."""
    return frame(grpc.HEADERS, grpc.END_HEADERS | grpc.END_STREAM, stream, b"\x88")


def calls(load: Load, message: bytes = b"m" * 8) -> tuple[UnaryCalls, Wire]:
    window = UnaryCalls(load, PUT, lambda place: message)
    return window, connect(window)


async def test_grpc_greets_and_sends_each_call_on_a_stream_of_its_own() -> None:
    _, wire = calls(LOAD)
    written = wire.take()
    assert written.startswith(grpc.PREFACE)
    sent = frames(written[len(grpc.PREFACE) :])
    assert [(kind, stream) for kind, _, stream, _ in sent] == [
        (grpc.SETTINGS, 0),
        (grpc.WINDOW_UPDATE, 0),
        (grpc.HEADERS, 1),
        (grpc.DATA, 1),
        (grpc.HEADERS, 3),
        (grpc.DATA, 3),
    ]
    assert PUT.encode() in sent[2][3]
    assert sent[3] == (grpc.DATA, grpc.END_STREAM, 1, b"\x00\x00\x00\x00\x08" + b"m" * 8)


@pytest.mark.parametrize("cut", [1, 11, 1000])
async def test_grpc_answers_are_counted(cut: int) -> None:
    window, _ = calls(LOAD._replace(in_flight=3))
    reset = frame(grpc.RST_STREAM, 0, 5, bytes(4))
    feed(window, frame(grpc.SETTINGS, 0, 0) + answer(3) + refusal(1) + reset, cut)
    await window.done
    assert (window.acked, window.errors) == (1, 2)


async def test_grpc_keeps_its_window_full_and_answers_the_server() -> None:
    window, wire = calls(ENDLESS)
    wire.take()
    window.data_received(frame(grpc.PING, 0, 0, b"12345678") + frame(grpc.SETTINGS, 0, 0) + answer(1))
    sent = frames(wire.take())
    assert (grpc.PING, grpc.ACK, 0, b"12345678") in sent
    assert (grpc.SETTINGS, grpc.ACK, 0, b"") in sent
    assert [stream for kind, _, stream, _ in sent if kind == grpc.HEADERS] == [5]


def data_bytes(wire: Wire, stream: int) -> int:
    return sum(len(payload) for kind, _, to, payload in frames(wire.take()) if kind == grpc.DATA and to == stream)


async def test_grpc_waits_for_room_on_stream_and_connection() -> None:
    """A message of 100,005 bytes: 65,535 are allowed at first, then what each of the two windows has room for."""
    window, wire = calls(LOAD._replace(in_flight=1), b"m" * 100_000)
    wire.written = wire.written[len(grpc.PREFACE) :]
    assert data_bytes(wire, 1) == grpc.DEFAULT_WINDOW
    window.data_received(frame(grpc.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 20)))
    assert data_bytes(wire, 1) == 0, "the connection has no room yet"
    window.data_received(frame(grpc.WINDOW_UPDATE, 0, 0, struct.pack(">I", 10)))
    assert data_bytes(wire, 1) == 10
    window.data_received(frame(grpc.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)))
    assert data_bytes(wire, 1) == 100_005 - grpc.DEFAULT_WINDOW - 10


async def test_grpc_room_of_open_streams_follows_the_settings() -> None:
    window, wire = calls(LOAD._replace(in_flight=1), b"m" * 70_000)
    wire.written = wire.written[len(grpc.PREFACE) :]
    data_bytes(wire, 1)
    window.data_received(frame(grpc.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)))
    assert data_bytes(wire, 1) == 0
    more = struct.pack(">HI", grpc.INITIAL_WINDOW_SIZE, grpc.DEFAULT_WINDOW + 100)
    window.data_received(frame(grpc.SETTINGS, 0, 0, more))
    assert data_bytes(wire, 1) == 100


async def test_grpc_goaway_ends_the_run() -> None:
    window, wire = calls(ENDLESS)
    window.data_received(frame(grpc.GOAWAY, 0, 0, bytes(8)))
    with pytest.raises(ConnectionError, match="GOAWAY"):
        await window.done
    assert wire.closed


def test_puts_of_a_transaction_have_keys_of_their_own() -> None:
    one = put(7, 8)
    assert one == b"\x0a\x0ebench/00000007\x12\x08" + bytes(range(8))
    two = transaction(3, 8, 2)
    assert b"bench/00000006" in two
    assert b"bench/00000007" in two
    # success (field 2) of { request_put (field 2) of the put }, twice
    assert two.startswith(b"\x12" + bytes([len(one) + 2]) + b"\x12" + bytes([len(one)]))
    assert len(put(0, 1024)) == 16 + 3 + 1024, "a length of two bytes"


async def test_pysyncobj_answers_are_counted_wherever_they_are_cut() -> None:
    proposer = Proposer(LOAD)
    wire = connect(proposer)
    assert wire.take() == b"".join(FRAME.pack(place, 8) + bytes(range(8)) for place in range(2))
    feed(proposer, ANSWER.pack(1, True) + ANSWER.pack(0, False), 3)
    await proposer.done
    assert (proposer.acked, proposer.errors) == (1, 1)


def test_both_ends_of_the_front_of_pysyncobj_agree() -> None:
    # In a process of its own: who imports pysyncobj has another socket.inet_ntop, which fails outside of Windows.
    tell = "import runpy, sys; n = runpy.run_path(sys.argv[1]); print(n['FRAME'].format, n['ANSWER'].format, n['ASK'])"
    node = Path(pysyncobj.__file__).with_name("pysyncobj_node.py")
    done = subprocess.run(
        [sys.executable, "-P", "-c", tell, node], capture_output=True, text=True, timeout=at_most(60), check=True
    )
    assert done.stdout.split() == [FRAME.format, ANSWER.format, str(ASK)]
