"""Three registry processes on the loopback interface: what was acknowledged survives, and outsiders change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cluster.registry.frames import FAIL, OK, UNKNOWN
from cluster.registry.records import TopicPlace, beat_operation, topics_operation
from raftmq_wire.errors import LocalError
from tests.support.pace import at_most
from tests.support.registry_trio import CLUSTER, LIMIT_S, Trio
from tests.support.tools import needs

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    trio = Trio(tmp_path)
    yield trio
    await trio.close()


async def test_an_operation_is_replicated(trio: Trio) -> None:
    await trio.start()
    await trio.put_somehow("first")
    for number in trio.children:
        assert await trio.put(number, f"at {number}".replace(" ", "-"))
    assert await trio.lacking() == {1: set(), 2: set(), 3: set()}
    status = await trio.status(1)
    assert status.syncs > 0
    again = (await trio.status(1)).committed
    for number in trio.children:
        assert await trio.put(number, "first"), "known: it is answered and not written"
    assert (await trio.status(1)).committed == again
    reply = await trio.children[2].apply(beat_operation(CLUSTER, 2, 7), LIMIT_S)
    assert reply[1:] == (OK, "", msgspec.msgpack.encode(7))
    reply = await trio.children[2].apply(beat_operation(bytes(16), 2, 8), LIMIT_S)
    assert reply[1] == FAIL
    assert "another cluster" in reply[2]


async def test_what_was_acknowledged_survives_kills(trio: Trio) -> None:
    """Each process in turn, then all at once, while operations go on."""
    await trio.start()
    await trio.put_somehow("begin")
    writing = True

    async def write(number: int) -> None:
        count = 0
        while writing:
            child = trio.children.get(number)
            if child is None or not await trio.put(number, f"{number}.{count}"):
                await asyncio.sleep(0.05)
            count += 1

    writers = [asyncio.create_task(write(number)) for number in trio.settings]
    for victims in ((1,), (2,), (3,), (1, 2, 3), (await trio.leader(),), (1, 2, 3)):
        before = len(trio.acked)
        while len(trio.acked) < before + 20:
            await asyncio.sleep(0.02)
        await trio.kill(*victims)
        await trio.start(*victims)
        await trio.put_somehow(f"after-{victims}".replace(" ", ""))
    writing = False
    await asyncio.gather(*writers)
    assert len(trio.acked) > 120
    assert await trio.lacking() == {1: set(), 2: set(), 3: set()}


async def test_a_lost_disk_is_filled_again(trio: Trio) -> None:
    """With a snapshot, because the others have compacted."""
    await trio.start()
    await trio.put_somehow("begin")
    for first in range(0, 700, 6):
        await asyncio.gather(*(trio.put(1, f"t{first + number}") for number in range(6)))
    status = await trio.status(1)
    assert status.entries < 600, "it is compacted"
    await trio.kill(2)
    for path in trio.directory(2).iterdir():
        path.unlink()
    await trio.start(2)
    await trio.put_somehow("end")
    assert await trio.lacking() == {1: set(), 2: set(), 3: set()}
    assert (trio.directory(2) / "snapshot").exists()


async def test_a_damaged_journal_is_refused(trio: Trio) -> None:
    await trio.start()
    for number in range(50):
        await trio.put_somehow(f"t{number}")
    await trio.kill(1)
    with (trio.directory(1) / "journal").open("r+b") as file:
        file.seek(1000)
        file.write(bytes(64))
    with pytest.raises(LocalError, match="did not start"):
        await trio.start(1)
    assert "journal is damaged at byte" in trio.log(1)
    assert "Move its directory away and start it empty" in trio.log(1)
    await trio.put_somehow("without-it")


SMALL = """
mount -t tmpfs -o size=2600k none "$1" && head -c 600000 /dev/zero > "$1/ballast"
(while [ ! -e "$2" ]; do sleep 0.1; done; rm "$1/ballast"; mount -o remount,size=20m "$1") </dev/null >/dev/null &
shift 2; exec "$@"
"""


@needs("mount")
async def test_a_full_disk_is_an_error_and_passes(trio: Trio, tmp_path: Path) -> None:
    """On file systems of 2.6 MB: operations are refused, no process ends, and with space all goes on."""
    relief = tmp_path / "relief"
    for number, settings in trio.settings.items():
        (tmp_path / str(number)).mkdir()
        trio.settings[number] = msgspec.structs.replace(settings, directory=f"{settings.directory}/registry")

    def small(number: int) -> list[str]:
        return ["unshare", "-Urm", "bash", "-c", SMALL, "small", str(tmp_path / str(number)), str(relief)]

    await trio.start(prefix=small)
    try:
        await _fill(trio)
    finally:
        relief.touch()
    await trio.put_somehow("end")
    assert all(child.process.returncode is None for child in trio.children.values())
    assert await trio.lacking() == {1: set(), 2: set(), 3: set()}


@needs("mount")
async def test_a_leader_with_a_full_disk_hands_over_and_does_not_end(trio: Trio, tmp_path: Path) -> None:
    """Its journal is no mapped file: there a full disk is a SIGSEGV."""
    reliefs = {number: tmp_path / f"relief-{number}" for number in trio.settings}
    for number, settings in trio.settings.items():
        (tmp_path / str(number)).mkdir()
        trio.settings[number] = msgspec.structs.replace(settings, directory=f"{settings.directory}/registry")

    def small(number: int) -> list[str]:
        return ["unshare", "-Urm", "bash", "-c", SMALL, "small", str(tmp_path / str(number)), str(reliefs[number])]

    await trio.start(prefix=small)
    leader = await trio.leader()
    try:
        for number, relief in reliefs.items():
            if number != leader:
                relief.touch()
        for number in range(400):
            names = {f"{number}.{each}".ljust(200, "x"): TopicPlace(1, (1,)) for each in range(100)}
            await trio.children[1 + number % 3].apply(topics_operation(CLUSTER, names), LIMIT_S)
            if (await trio.status(leader)).is_full:
                break
        assert (await trio.status(leader)).is_full
        others = [number for number in trio.children if number != leader]
        deadline = time.monotonic() + at_most(20)
        while not await _another_leads(trio, leader, others):
            assert time.monotonic() < deadline, trio.log(leader)[-2000:]
            await asyncio.sleep(0.05)
        for number in others:
            await trio.put_somehow(f"without-the-full-one-{number}")
        assert not any([(await trio.status(number)).is_full for number in others])
    finally:
        reliefs[leader].touch()
    await trio.put_somehow("end")
    assert all(child.process.returncode is None for child in trio.children.values())
    assert await trio.lacking() == {1: set(), 2: set(), 3: set()}


async def _another_leads(trio: Trio, leader: int, others: list[int]) -> bool:
    told = {(await trio.status(number)).leader for number in others}
    return len(told) == 1 and not told & {0, leader}


async def _fill(trio: Trio) -> None:
    """Applies operations until disks are full."""
    await trio.put_somehow("begin")
    refused = 0
    for number in range(400):
        names = {f"{number}.{each}".ljust(200, "x"): TopicPlace(1, (1,)) for each in range(100)}
        reply = await trio.children[1 + number % 3].apply(topics_operation(CLUSTER, names), LIMIT_S)
        if reply[1] != OK:  # an election refuses operations as well
            refused += any([(await trio.status(each)).is_full for each in trio.children])
            await asyncio.sleep(0.02)
        if refused == 5:
            break
    assert refused == 5
    assert all(child.process.returncode is None for child in trio.children.values())


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


async def test_outsiders_change_nothing(trio: Trio, tmp_path: Path) -> None:
    """Pickles, garbage, frames without end, and more connections than there may be."""
    await trio.start()
    await trio.put_somehow("begin")
    host, port = trio.settings[1].bind.split(":")
    proof = tmp_path / "unpickled"
    evil = pickle.dumps(Evil(proof), 2)
    for data in (
        struct.pack("i", len(zlib.compress(evil))) + zlib.compress(evil),
        struct.pack("i", len(evil)) + evil,
        struct.pack("i", -1) + bytes(100),
        struct.pack("i", 1 << 30) + bytes(1 << 20),
        b"status\n",
    ):
        with socket.create_connection((host, int(port)), at_most(5)) as outsider:
            outsider.settimeout(at_most(20))
            said = b""
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                outsider.sendall(data)
                said = outsider.recv(100)
            assert said == b"", "it says nothing, and ends the connection"
    assert not proof.exists()
    many = [socket.create_connection((host, int(port)), at_most(5)) for _ in range(40)]
    await trio.kill(2)
    await trio.start(2)
    for each in many:
        each.close()
    for number in trio.children:
        async with asyncio.timeout(at_most(30)):  # the one that was killed may have led
            while not await trio.put(number, f"after-{number}"):
                await asyncio.sleep(0.1)
    assert await trio.lacking() == {1: set(), 2: set(), 3: set()}


async def test_a_process_with_another_password_is_none_of_them(trio: Trio) -> None:
    await trio.start(1, 2)
    await trio.put_somehow("begin")
    trio.settings[3] = msgspec.structs.replace(trio.settings[3], password="another one of 16")
    await trio.start(3)
    for number in range(10):
        assert not await trio.put(3, f"forged-{number}")
    await trio.put_somehow("end")
    assert await trio.held(3) == {}
    assert set(await trio.held(1)) == {"begin", "end"}


async def test_without_a_majority_nothing_is_acknowledged_and_each_call_ends(trio: Trio) -> None:
    await trio.start()
    await trio.put_somehow("begin")
    await trio.kill(2, 3)
    child = trio.children[1]
    asked = [child.apply(beat_operation(CLUSTER, 1, number), LIMIT_S) for number in range(1, 21)]
    replies = await asyncio.gather(*asked)
    assert {reply[1] for reply in replies} <= {FAIL, UNKNOWN}
    assert sum("8 operations are in flight" in reply[2] for reply in replies) in (0, 12)
    await trio.start(2, 3)
    await trio.put_somehow("end")


async def test_it_ends_with_its_parent_and_refuses_a_port_that_is_taken(trio: Trio) -> None:
    await trio.start(1)
    trio.settings[2] = msgspec.structs.replace(trio.settings[2], bind=trio.settings[1].bind)
    with pytest.raises(LocalError, match="did not start"):
        await trio.start(2)
    assert "cannot listen at" in trio.log(2)
    assert await trio.children.pop(1).close(at_most(5)) == 0
