"""The way of answers to the transport: small ones joined, large bodies as they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.config.service_sections import LimitsSection
from cluster.flow.gate import Gate
from cluster.remoting.connection.connection_memory import COUNTED_BYTES, ConnectionMemory
from cluster.remoting.connection.server import Dispatch, RemotingConnection
from cluster.runtime.turns.work import Turns
from tests.support.contexts import CONFIG

LARGE = bytes(COUNTED_BYTES + 1)


class Quiet(Dispatch):
    """Takes every connection."""

    def __init__(self) -> None:
        soon = asyncio.get_running_loop().call_soon
        self.memory, self.turns = ConnectionMemory(LimitsSection(), soon, Gate(CONFIG)), Turns(soon)

    def on_open(self, connection: RemotingConnection) -> bool:
        return True

    def watch(self, connection: RemotingConnection) -> None:
        pass


class Recorder(asyncio.Transport):
    """Keeps what it is given, a list for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[bytes]] = []

    def write(self, data: Any) -> None:
        self.calls.append([data])

    def writelines(self, list_of_data: Any) -> None:
        self.calls.append(list(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture
async def made() -> tuple[RemotingConnection, Recorder]:
    connection = RemotingConnection(Quiet(), "broker", 1 << 20, asyncio.get_running_loop())
    transport = Recorder()
    connection.connection_made(transport)
    return connection, transport


async def test_the_gate_is_asked_for_the_client_at_its_own_address() -> None:
    connection = RemotingConnection(Quiet(), "broker", 1 << 20, asyncio.get_running_loop())
    connection.connection_made(asyncio.Transport({"peername": ("10.0.0.7", 4711)}))
    assert connection.in_flight.address == connection.peer_address[0] == "10.0.0.7"


async def test_a_large_body_is_not_copied_and_keeps_its_place(made: tuple[RemotingConnection, Recorder]) -> None:
    connection, transport = made
    connection.write(b"before")
    connection.write_parts(b"head", LARGE)
    connection.write(b"behind")
    await asyncio.sleep(0)
    (parts,) = transport.calls
    assert parts == [b"before", b"head", LARGE, b"behind"]
    assert parts[2] is LARGE
    assert connection.handed == sum(map(len, parts))
    connection.write(b"a")
    connection.write(b"b")
    await asyncio.sleep(0)
    assert transport.calls[1:] == [[b"ab"]], "what follows is joined again"


async def test_small_bodies_are_joined(made: tuple[RemotingConnection, Recorder]) -> None:
    connection, transport = made
    connection.write_parts(b"head", b"body")
    connection.write_parts(b"head", LARGE[1:])
    await asyncio.sleep(0)
    assert transport.calls == [[b"headbodyhead" + LARGE[1:]]]


async def test_a_large_body_is_counted_until_it_is_taken(made: tuple[RemotingConnection, Recorder]) -> None:
    connection, transport = made
    connection.write_parts(b"head", LARGE)
    assert connection.room.taken >= len(LARGE)
    await asyncio.sleep(0)
    assert connection.room.taken == 0, "the transport keeps nothing"
    assert len(transport.calls) == 1


async def test_answers_of_an_entry_are_handed_over_at_once(made: tuple[RemotingConnection, Recorder]) -> None:
    connection, transport = made
    connection.write_all(b"answers")
    assert transport.calls == [[b"answers"]]
    await asyncio.sleep(0)
    connection.write_all(b"more")
    assert transport.calls == [[b"answers"], [b"more"]]


async def test_but_not_before_what_waits_to_be_handed_over(made: tuple[RemotingConnection, Recorder]) -> None:
    connection, transport = made
    connection.write(b"an earlier one, ")
    connection.write_all(b"answers")
    assert transport.calls == []
    await asyncio.sleep(0)
    assert transport.calls == [[b"an earlier one, answers"]]


@pytest.mark.parametrize("secure", [True, False])
async def test_a_connection_knows_if_it_is_one_of_tls(secure: bool) -> None:
    connection = RemotingConnection(Quiet(), "broker", 1 << 20, asyncio.get_running_loop())
    transport = Recorder()
    transport._extra = {"sslcontext": object()} if secure else {}  # type: ignore[attr-defined]
    connection.connection_made(transport)
    assert connection.secure is secure
