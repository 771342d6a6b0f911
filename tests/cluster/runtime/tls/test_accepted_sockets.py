"""A port that may take TLS: what the first byte decides, and how strangers that say nothing, or shake hands without an
end, are bounded. Real sockets; addresses of one machine stand for many."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from cluster.config.node_sections import TlsMode, TlsSection
from cluster.runtime.tls import accepted_sockets
from cluster.runtime.tls.accepted_sockets import ADDRESS_MAX, ARRIVAL_LIMITS, HANDSHAKES_MAX
from cluster.runtime.tls.acceptor import Acceptor
from cluster.runtime.tls.contexts import load_contexts
from cluster.runtime.tls.port_security import Security
from tests.support.certificates import Files, make_files, write_chain
from tests.support.pace import at_most
from tests.support.wait_until import PATIENCE_S, until


class Echo(asyncio.Protocol):
    """Answers with what it gets."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Port:
    """An acceptor and what clients of it need."""

    def __init__(self, files: Files, mode: TlsMode, client_certificates: str = "none", **limits: float) -> None:
        keys = {"cert_file": "node.crt", "key_file": "node.key", "ca_file": "ca.crt"}
        section = TlsSection(
            mode="enforcing",
            client_certificates=client_certificates,  # type: ignore[arg-type] # a literal of the test
            **{key: files.path(name) for key, name in keys.items()},
        )
        contexts = load_contexts(section)
        security = Security("test", mode, lambda: contexts.clients, refusal=b"TLS only\n")
        self.known: set[str] | None = None
        """The addresses that have proven a user; None: nothing is reserved for them."""
        self.places_max = 1 << 30
        self.acceptor = Acceptor(
            asyncio.get_running_loop(),
            Echo,
            self._room,
            security,
            self._may_have_all,
            ARRIVAL_LIMITS._replace(**limits),  # type: ignore[arg-type] # a number each
        )

    def _room(self, opening: int, address: str) -> str:
        return "" if opening < self.places_max else "full"

    def _may_have_all(self, address: str) -> bool:
        return self.known is None or address in self.known

    async def open(self) -> None:
        await self.acceptor.open("0.0.0.0", 0)
        self.number: int = self.acceptor.addresses[0][1]

    @property
    def arrivals(self) -> accepted_sockets.AcceptedSockets:
        found = self.acceptor._arrivals
        assert found is not None
        return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("tls"))


Open = Callable[..., Port]


@pytest.fixture
async def ports(files: Files) -> AsyncIterator[Open]:
    made: list[Port] = []

    def make(mode: TlsMode, client_certificates: str = "none", **limits: float) -> Port:
        made.append(Port(files, mode, client_certificates, **limits))
        return made[-1]

    yield make
    for port in made:
        port.acceptor.close()


def trusting(files: Files, *, cert: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.path("ca.crt"))
    if cert:
        context.load_cert_chain(files.path(f"{cert}.crt"), files.path(f"{cert}.key"))
    return context


async def says_hello(port: int, context: ssl.SSLContext | None, *, source: str = "127.0.0.1") -> bytes:
    """What a client gets for b"hello", until it is all there or the connection ends."""
    secure = {"ssl": context, "server_hostname": "localhost"} if context is not None else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), **secure)  # type: ignore[arg-type]
    try:
        writer.write(b"hello")
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read(100)
    finally:
        writer.transport.abort()


BEGUN = b"\x16\x03\x01\x02\x00\x01"
"""The first bytes of a handshake that does not go on."""


def begins(port: Port, host: str) -> socket.socket:
    stranger = socket.create_connection(("127.0.0.1", port.number), source_address=(host, 0))
    stranger.sendall(BEGUN)
    return stranger


def has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def pressed(ports: Open, *, after_s: float, places: int = HANDSHAKES_MAX, **more: float) -> Port:
    """Opens a port at which a handshake ends only because others wait for its place."""
    patient = {"handshake_s": 10 * PATIENCE_S, "turn_s": 10 * PATIENCE_S}
    port = ports("enforcing", handshakes=places, pressed_s=after_s, **patient, **more)
    await port.open()
    return port


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_one_port_takes_both(files: Files, ports: Open) -> None:
    port = ports("permissive")
    await port.open()
    assert await says_hello(port.number, None) == b"hello"
    assert await says_hello(port.number, trusting(files)) == b"hello"
    await until(lambda: len(port.arrivals) == 0)


async def test_plain_text_is_refused_where_tls_is_enforced(
    files: Files, ports: Open, caplog: pytest.LogCaptureFixture
) -> None:
    port = ports("enforcing")
    await port.open()
    assert await says_hello(port.number, None) == b"TLS only\n"
    assert await says_hello(port.number, trusting(files)) == b"hello"
    (told,) = warnings(caplog)
    assert "plain text" in told


async def test_a_client_shows_a_certificate_where_one_is_required(
    files: Files, ports: Open, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    port = ports("enforcing", "required")
    await port.open()
    assert await says_hello(port.number, trusting(files, cert="client")) == b"hello"
    assert not warnings(caplog)
    foreign = make_files(tmp_path / "other")
    wrong = trusting(files)
    wrong.load_cert_chain(foreign.path("client.crt"), foreign.path("client.key"))
    for context in (trusting(files), wrong):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await says_hello(port.number, context) == b""
    await until(lambda: len(warnings(caplog)) == 2)


@pytest.mark.parametrize(
    ("days", "links", "says"),
    [
        ((-20, -10), 0, "certificate has expired"),
        ((10, 20), 0, "certificate is not yet valid"),
        ((-1, 10), 1, "path length constraint exceeded"),
        ((-1, 10), 400, "excessive message size"),
    ],
    ids=["expired", "not yet valid", "not issued by the CA itself", "a chain too long"],
)
async def test_a_certificate_that_does_not_count_is_refused(
    files: Files,
    ports: Open,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    days: tuple[int, int],
    links: int,
    says: str,
) -> None:
    port = ports("enforcing", "required")
    await port.open()
    wrong = trusting(files)
    wrong.load_cert_chain(*write_chain(files.ca, tmp_path, days, links))
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert await says_hello(port.number, wrong) == b""
    await until(lambda: len(warnings(caplog)) == 1)
    assert says in warnings(caplog)[0]
    assert await says_hello(port.number, trusting(files, cert="client")) == b"hello"


async def test_a_hello_may_come_byte_by_byte(files: Files, ports: Open) -> None:
    port = ports("enforcing")
    await port.open()
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(files).wrap_bio(incoming, outgoing, server_hostname="localhost")
    plain = socket.create_connection(("127.0.0.1", port.number))
    plain.setblocking(False)
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            for each in outgoing.read():
                await loop.sock_sendall(plain, bytes([each]))
                await asyncio.sleep(0)
            incoming.write(await loop.sock_recv(plain, 65536))
    client.write(b"hello")
    await loop.sock_sendall(plain, outgoing.read())
    incoming.write(await loop.sock_recv(plain, 65536))
    assert client.read() == b"hello"
    plain.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"\x16\x03\x01\xff\xff" + b"\x00" * 64,
        b"\x16\x03\x01\x7f\xff\xff\xff" + b"\x01" * 200,
        b"\x16\x16\x16\x16\x16\x16\x16\x16\x16",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" + b"\x16\x03\x01\x40\x00" + b"\x00" * 16384,
    ],
    ids=["longest record", "no record", "no version", "hello of 16 MiB"],
)
async def test_what_begins_as_tls_and_is_none_is_closed(
    begun: bytes, ports: Open, caplog: pytest.LogCaptureFixture
) -> None:
    port = ports("permissive", handshake_s=0.5)
    await port.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    writer.write(begun)
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()
    writer.close()
    assert len(warnings(caplog)) == 1


async def test_a_connection_without_a_byte_ends_in_time(ports: Open) -> None:
    port = ports("permissive", first_byte_s=0.2)
    await port.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    assert len(port.arrivals) == 0


async def test_strangers_hold_no_more_handshakes_than_allowed(files: Files, ports: Open) -> None:
    """And an address that holds none of them is served at once, whatever others hold."""
    port = ports("enforcing")
    await port.open()
    strangers = []
    for number in range(2, 5):
        for _ in range(100):
            strangers.append(begins(port, f"127.0.0.{number}"))
            await asyncio.sleep(0)
    await until(lambda: port.arrivals.shaking == 3 * ADDRESS_MAX)
    assert await says_hello(port.number, trusting(files)) == b"hello"
    assert port.arrivals.shaking <= 3 * ADDRESS_MAX <= HANDSHAKES_MAX
    for stranger in strangers:
        stranger.close()
    await until(lambda: len(port.arrivals) == 0)


@pytest.mark.parametrize("known", [None, {"127.0.0.9"}], ids=["without users", "enforced"])
async def test_strangers_of_many_addresses_do_not_keep_all_places(
    files: Files,
    ports: Open,
    caplog: pytest.LogCaptureFixture,
    known: set[str] | None,
) -> None:
    """No handshake here ends by its own time: a client that waits for a place gets it all the same."""
    port = await pressed(ports, after_s=0.05)
    port.known, most = known, HANDSHAKES_MAX if known is None else 48
    strangers = [begins(port, f"127.0.1.{number}") for number in range(1, most + 1)]
    await until(lambda: port.arrivals.shaking == most)
    assert not warnings(caplog), "nobody waits"
    strangers += [begins(port, f"127.0.2.{number}") for number in range(1, 2 * HANDSHAKES_MAX)]
    assert await says_hello(port.number, trusting(files)) == b"hello"
    assert "others wait" in warnings(caplog)[0]
    await until(lambda: has_ended(strangers[0]))
    assert port.arrivals.shaking <= HANDSHAKES_MAX
    for stranger in strangers:
        stranger.close()
    await until(lambda: len(port.arrivals) == 0)


async def test_the_last_quarter_of_handshakes_is_for_addresses_that_have_proven_a_user(
    files: Files, ports: Open
) -> None:
    """No handshake here ends by its own time, and none is ended for another."""
    port = await pressed(ports, after_s=10 * PATIENCE_S)
    port.known = {"127.0.0.1"}
    strangers = [begins(port, f"127.0.1.{number}") for number in range(1, 2 * HANDSHAKES_MAX + 1)]
    await until(lambda: len(port.arrivals) == 2 * HANDSHAKES_MAX)
    assert await says_hello(port.number, trusting(files)) == b"hello"
    assert port.arrivals.shaking == 48
    for stranger in strangers:
        stranger.close()
    await until(lambda: len(port.arrivals) == 0)


async def test_what_waits_gives_way_to_a_newcomer_when_all_places_are_taken(files: Files, ports: Open) -> None:
    port = await pressed(ports, after_s=10 * PATIENCE_S, gives_way_s=0.0, first_byte_s=10 * PATIENCE_S)
    port.known, port.places_max = set(), 20
    silent = [
        socket.create_connection(("127.0.0.1", port.number), source_address=(f"127.0.1.{number}", 0))
        for number in range(1, 21)
    ]
    await until(lambda: len(port.arrivals) == 20)
    assert await says_hello(port.number, trusting(files)) == b"hello"
    await until(lambda: has_ended(silent[0]))
    shaking = [begins(port, f"127.0.2.{number}") for number in range(1, 41)]
    await until(lambda: port.arrivals.shaking == 20)
    assert await says_hello(port.number, trusting(files)) == b"hello"
    for stranger in [*silent, *shaking]:
        stranger.close()
    await until(lambda: len(port.arrivals) == 0)


async def test_the_next_stranger_is_ended_too_if_the_one_before_left_by_itself(files: Files, ports: Open) -> None:
    port = await pressed(ports, after_s=0.3, places=1)
    strangers = [begins(port, f"127.0.1.{number}") for number in (1, 2)]
    await until(lambda: port.arrivals._pressing is not None)
    strangers[0].close()
    assert await says_hello(port.number, trusting(files)) == b"hello"
    assert has_ended(strangers[1])
    strangers[1].close()


async def test_only_who_keeps_others_waiting_is_ended_early(ports: Open) -> None:
    port = await pressed(ports, after_s=0.05, places=1)
    hasty = [begins(port, f"127.0.1.{number}") for number in range(1, 4)]
    await until(lambda: has_ended(hasty[0]) and has_ended(hasty[1]))
    await until(lambda: port.arrivals.shaking == 1)
    other = await pressed(ports, after_s=0.05, places=1)
    later = [begins(other, f"127.0.1.{number}") for number in range(4, 6)]
    await until(lambda: has_ended(later[0]))
    assert not has_ended(hasty[2]), "nobody waits for its place"
    for stranger in [*hasty, *later]:
        stranger.close()
    await until(lambda: len(port.arrivals) == 0)


SLOW_S = at_most(0.3)
"""Seconds for a handshake where one place is there, and each that runs out of time shows who comes first."""


async def runs_out(port: Port, *hosts: str) -> None:
    """Lets a handshake of each of these addresses run out of time, one after the other."""
    for host in hosts:
        slow = begins(port, host)
        await until(partial(has_ended, slow))
        slow.close()


async def comes_first(port: Port, files: Files, first: str, late: str) -> bool:
    """Whether the handshake of `first` begins before that of `late`, whose client was there before. Another one has the
    only place meanwhile."""
    holder = begins(port, "127.0.2.1")
    await until(lambda: port.arrivals.shaking == 1)
    waits = begins(port, late)
    await until(lambda: len(port.arrivals) == 2)
    assert await says_hello(port.number, trusting(files), source=first) == b"hello"
    is_first = not has_ended(waits)
    for stranger in (holder, waits):
        stranger.close()
    await until(lambda: len(port.arrivals) == 0)
    return is_first


async def test_an_address_that_let_a_handshake_run_out_of_time_comes_last_until_it_shakes_hands(
    files: Files, ports: Open
) -> None:
    port = ports("enforcing", handshakes=1, handshake_s=SLOW_S)
    await port.open()
    await runs_out(port, "127.0.1.1", "127.0.1.2")
    assert await comes_first(port, files, "127.0.0.1", late="127.0.1.1")
    assert not await comes_first(port, files, "127.0.1.1", late="127.0.1.2"), "both are slow"
    assert await comes_first(port, files, "127.0.1.1", late="127.0.1.2"), "it has shaken hands"


async def test_of_slow_addresses_the_newest_are_remembered(files: Files, ports: Open) -> None:
    port = ports("enforcing", handshakes=1, handshake_s=SLOW_S, arrivals=2)
    await port.open()
    await runs_out(port, "127.0.1.1", "127.0.1.2", "127.0.1.3")
    assert await comes_first(port, files, "127.0.1.1", late="127.0.1.2"), "it is forgotten"
    await runs_out(port, "127.0.1.1")
    assert not await comes_first(port, files, "127.0.1.1", late="127.0.1.3")


async def test_who_floods_a_port_loses_its_own(files: Files, ports: Open) -> None:
    port = ports("enforcing", arrivals=50)
    await port.open()
    quiet = socket.create_connection(("127.0.0.1", port.number), source_address=("127.0.0.9", 0))
    await until(lambda: len(port.arrivals) == 1)
    flood = []
    for _ in range(200):
        flood.append(socket.create_connection(("127.0.0.1", port.number), source_address=("127.0.0.2", 0)))
        await asyncio.sleep(0)
    await until(lambda: len(port.arrivals) <= 50)
    assert await says_hello(port.number, trusting(files)) == b"hello"
    quiet.setblocking(False)
    with pytest.raises(BlockingIOError):
        quiet.recv(1)
    for each in [quiet, *flood]:
        each.close()
    await until(lambda: len(port.arrivals) == 0)


async def test_a_client_that_leaves_while_it_waits_is_forgotten(ports: Open) -> None:
    port = ports("permissive")
    await port.open()
    for _ in range(20):
        socket.create_connection(("127.0.0.1", port.number)).close()
    await asyncio.sleep(0.05)
    await until(lambda: len(port.arrivals) == 0)
