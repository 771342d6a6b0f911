"""A connection over TLS: what it reports as unsent, how it pauses, ends by halves, and what it makes of bad records.
Real sockets between two of them, and between one and the standard library's own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.config.node_sections import TlsSection
from cluster.runtime.tls.contexts import Contexts, load_contexts
from cluster.runtime.tls.transport import TlsTransport
from tests.support.certificates import make_files
from tests.support.wait_until import until

MIB = 1 << 20


class Kept(asyncio.Protocol):
    """Keeps what comes and when it is asked to pause."""

    def __init__(self) -> None:
        self.transport: TlsTransport
        self.got = bytearray()
        self.eof = self.lost = self.paused = False
        self.pauses = 0
        self.keeps_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool:
        self.eof = True
        return self.keeps_open

    def pause_writing(self) -> None:
        assert not self.paused
        self.paused = True
        self.pauses += 1

    def resume_writing(self) -> None:
        assert self.paused
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self.lost
        self.lost = True


class Sides:
    """Both ends of one connection."""

    def __init__(self) -> None:
        self.server, self.client = Kept(), Kept()
        self.errors: list[Exception] = []

    async def open(self, contexts: Contexts) -> None:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        dial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        dial.check_hostname, dial.verify_mode = False, ssl.CERT_NONE

        def done(transport: TlsTransport, error: Exception | None) -> None:
            if error is not None:
                self.errors.append(error)

        one = TlsTransport(loop, contexts.clients, lambda: self.server, done, server_side=True)
        other = TlsTransport(loop, dial, lambda: self.client, done, server_side=False)
        for made, each in ((one, near), (other, far)):
            each.setblocking(False)
            await loop.create_connection(lambda made=made: made, sock=each)  # type: ignore[misc]
        await until(lambda: hasattr(self.server, "transport") and hasattr(self.client, "transport"))


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    folder = tmp_path_factory.mktemp("tls")
    make_files(folder)
    return load_contexts(_section(folder))


def _section(folder: Path) -> TlsSection:
    return TlsSection(
        mode="enforcing",
        cert_file=str(folder / "node.crt"),
        key_file=str(folder / "node.key"),
        ca_file=str(folder / "ca.crt"),
    )


@pytest.fixture
async def sides(contexts: Contexts) -> AsyncIterator[Sides]:
    made = Sides()
    await made.open(contexts)
    yield made
    for each in (made.server, made.client):
        each.transport.abort()
    await until(lambda: made.server.lost and made.client.lost)


async def test_bytes_arrive_in_order_both_ways(sides: Sides) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - to repeat it
    rng = random.Random(seed)
    sent = {sides.server: bytearray(), sides.client: bytearray()}
    for _ in range(200):
        one = rng.choice((sides.server, sides.client))
        parts = [rng.randbytes(rng.choice((1, 100, 20_000, 70_000))) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.5:
            one.transport.writelines(parts)
        else:
            for part in parts:
                one.transport.write(part)
        sent[one] += b"".join(parts)
        if rng.random() < 0.2:
            await asyncio.sleep(0)
    await until(lambda: len(sides.client.got) == len(sent[sides.server]))
    await until(lambda: len(sides.server.got) == len(sent[sides.client]))
    assert (sides.client.got, sides.server.got) == (sent[sides.server], sent[sides.client])


async def test_nothing_that_has_not_left_is_hidden(sides: Sides) -> None:
    sides.client.transport.pause_reading()
    size = 32 * MIB
    sides.server.transport.write(b"x" * size)
    assert sides.server.paused
    await asyncio.sleep(0.2)
    told = sides.server.transport.get_write_buffer_size()
    assert size - 8 * MIB < told < size + MIB, "the kernel's buffers may have the rest"
    sides.client.transport.resume_reading()
    await until(lambda: len(sides.client.got) == size)
    assert sides.server.transport.get_write_buffer_size() == 0
    assert (sides.server.paused, sides.server.pauses) == (False, 1)


async def test_whoever_was_asked_to_pause_may_go_on_when_all_has_left(sides: Sides) -> None:
    """What waits below may be too little for the socket's transport to ask for a pause, and to tell of its end."""
    transport, sent = sides.server.transport, 0
    low, high = transport.get_write_buffer_limits()
    for size in range(high, 12 * high, low):
        sides.client.transport.pause_reading()
        for _ in range(100):  # until neither the kernel nor the queue takes more without a pause
            if sides.server.paused:
                break
            transport.write(bytes(size))
            sent += size
            await asyncio.sleep(0)
        assert sides.server.paused
        sides.client.transport.resume_reading()
        await until(lambda: not sides.server.paused)
    await until(lambda: len(sides.client.got) == sent)
    assert transport.get_write_buffer_limits() == (low, high)


async def test_no_turn_encrypts_all_of_a_large_write(sides: Sides) -> None:
    sides.client.transport.pause_reading()
    sides.server.transport.write(b"x" * (16 * MIB))
    assert sides.server.transport._queued > 8 * MIB
    sides.client.transport.resume_reading()
    await until(lambda: len(sides.client.got) == 16 * MIB)


async def test_one_side_may_end_and_the_other_goes_on(sides: Sides) -> None:
    sides.client.keeps_open = True
    sides.server.transport.write(b"a" * MIB)
    sides.server.transport.write_eof()
    await until(lambda: sides.client.eof)
    assert len(sides.client.got) == MIB
    sides.client.transport.write(b"still here")
    await until(lambda: sides.server.got == b"still here")
    sides.client.transport.close()
    await until(lambda: sides.server.lost and sides.client.lost)


async def test_a_close_comes_after_everything_that_was_written(sides: Sides) -> None:
    sides.server.transport.write(b"a" * (4 * MIB))
    sides.server.transport.close()
    await until(lambda: sides.client.lost)
    assert len(sides.client.got) == 4 * MIB
    assert sides.client.eof


async def test_a_paused_reader_gets_the_rest_when_it_goes_on(sides: Sides) -> None:
    sides.server.transport.pause_reading()
    sides.client.transport.write(b"b" * 300_000)
    await asyncio.sleep(0.05)
    assert len(sides.server.got) == 0
    sides.server.transport.resume_reading()
    await until(lambda: len(sides.server.got) == 300_000)


async def test_an_end_without_a_word_of_tls_ends_the_connection(sides: Sides) -> None:
    assert sides.client.transport._below is not None
    sides.client.transport._below.abort()
    await until(lambda: sides.server.lost)


async def test_a_changed_record_ends_the_connection(sides: Sides) -> None:
    below = sides.client.transport._below
    assert below is not None
    below.write(b"\x17\x03\x03\x00\x20" + b"z" * 32)
    await until(lambda: sides.server.lost)
    assert not sides.server.got


async def test_the_end_is_never_told_inside_of_what_comes(sides: Sides) -> None:
    """What a protocol began when its connection was made has begun before it hears of the end."""
    sides.server.transport.data_received(b"\x17\x03\x03\x00\x20" + b"z" * 32)
    assert not sides.server.lost
    await until(lambda: sides.server.lost)


async def test_a_context_resumes_no_session(contexts: Contexts, tmp_path: Path) -> None:
    """Not with a ticket; and one that TLS 1.2 keeps by its number is unknown to the next context."""
    loop = asyncio.get_running_loop()
    kept: dict[str, Contexts] = {"now": contexts}

    def server() -> asyncio.Protocol:
        return TlsTransport(loop, kept["now"].clients, Kept, lambda transport, error: None, server_side=True)

    listening = await loop.create_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]

    def shake(version: ssl.TLSVersion, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        plain = socket.create_connection(("127.0.0.1", port))
        with client.wrap_socket(plain, session=session) as secure:
            secure.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                secure.recv(1)
            return secure.session, secure.session_reused

    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.minimum_version = client.maximum_version = version
        session, _ = await loop.run_in_executor(None, shake, version, None)
        if version == ssl.TLSVersion.TLSv1_3:
            assert session is None or not session.has_ticket
        make_files(tmp_path / str(version))
        kept["now"] = load_contexts(_section(tmp_path / str(version)))
        _, again = await loop.run_in_executor(None, shake, version, session)
        assert again is False
        kept["now"] = contexts
    listening.close()
