"""File descriptors: clients never take those that the log needs, and a start with too few says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.config.source import ConfigError
from cluster.runtime.host import descriptors
from cluster.runtime.tls.acceptor import Acceptor
from tests.support.wait_until import until


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    kept = {"now": (256, 256)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: kept["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: kept.update(now=pair))
    return kept


def config() -> Config:
    return load(overrides={"node": {"id": 1, "data_dir": "/nowhere"}, "listeners": [{"name": "broker", "port": 10911}]})


@pytest.mark.parametrize(("soft", "hard"), [(256, 256), (1024, 1024), (1024, 4096)])
def test_clients_get_what_files_leave(limits: dict[str, tuple[int, int]], soft: int, hard: int) -> None:
    limits["now"] = soft, hard
    fitted = descriptors.fit(config()).limits.connections_max
    assert limits["now"] == (hard, hard), "raised as far as it may be"
    assert fitted + descriptors.reserve(hard) == hard
    assert fitted >= descriptors.CLIENTS_MIN


def test_enough_descriptors_change_nothing(limits: dict[str, tuple[int, int]]) -> None:
    limits["now"] = 1024, 1_000_000
    assert descriptors.fit(config()) == config()
    assert limits["now"][0] < 20_000


def test_a_start_with_too_few_says_so(limits: dict[str, tuple[int, int]]) -> None:
    limits["now"] = 128, 128
    with pytest.raises(ConfigError) as caught:
        descriptors.fit(config())
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "128 file descriptors" in lines[0]
    assert "ulimit -n 4096" in lines[2]


class Taken(asyncio.Protocol):
    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Taken.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        Taken.open -= 1


async def test_a_burst_never_takes_one_connection_too_many() -> None:
    Taken.open = 0
    most = 0

    def room(opening: int, address: str) -> str:
        nonlocal most
        most = max(most, Taken.open + opening)
        return "" if Taken.open + opening < 5 else "full"

    loop = asyncio.get_running_loop()
    acceptor = Acceptor(loop, Taken, room)
    await acceptor.open("127.0.0.1", 0)
    address = acceptor.addresses[0]
    clients = [socket.create_connection(address) for _ in range(50)]
    for _ in range(100):
        await asyncio.sleep(0.01)
    assert (Taken.open, most) == (5, 5)
    clients[0].close()
    await asyncio.sleep(0.05)
    clients.append(socket.create_connection(address))
    await asyncio.sleep(0.05)
    assert Taken.open == 5
    acceptor.close()
    for client in clients:
        client.close()
    while Taken.open:
        await asyncio.sleep(0.01)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls of readers."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[Any] = Counter()

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override] # of any kind
        def counted() -> None:
            self.read[fd] += 1
            callback(*args)

        super().add_reader(fd, counted)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """The process gets no further descriptor meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_it_waits_instead_of_asking_on_and_on(caplog: pytest.LogCaptureFixture) -> None:
    async def accepts(loop: CountingLoop) -> None:
        Taken.open = 0
        acceptor = Acceptor(loop, Taken, lambda opening, address: "")
        await acceptor.open("127.0.0.1", 0)
        client = socket.create_connection(acceptor.addresses[0])
        with no_descriptors():
            await until(lambda: "no connection can be taken: Too many open files" in caplog.text, every_s=0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert sum(loop.read.values()) == 1
        await until(lambda: Taken.open == 1)
        client.close()
        acceptor.close()
        await until(lambda: Taken.open == 0)

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        runner.run(accepts(loop))
