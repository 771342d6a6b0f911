"""The shim in a run: one NodeDisk per node, power failures, clocks, and the proof that all of it works.

The proof is done before any power failure counts. First the node's interpreter writes by itself: what it synced must
stay, what it did not must vanish; otherwise the shim cannot be used. Then a real node is tested: a message whose sync
is held must vanish from its log, and an acknowledged one must stay. If that fails although the shim passed, the node is
suspect: the run goes on, and cannot end as valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from jepsen_like.live.harm.power import NodeDisk, ShimError, build_shim
from jepsen_like.live.subjects.owned_resources import Owned
from jepsen_like.live.subjects.payload import body_of
from jepsen_like.live.subjects.processes import Processes
from jepsen_like.live.subjects.subject import LogClient, PlacedMessage, SendFailed, SendUnknown
from raftmq_wire.errors import LocalError

if TYPE_CHECKING:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject
    from jepsen_like.live.subjects.subject import Subject

T = TypeVar("T")
PROOF_S = 20.0
HELD_TRIES = 5


class Shim:
    """Makes the disks of a cluster whose nodes live in `nodes`/n1, n2, …; implements SkewsClocks."""

    def __init__(self, nodes: Path, folder: Path, library: Path, count: int = 3) -> None:
        self._nodes, self._folder, self._library = nodes, folder, library
        self.disks: dict[int, NodeDisk] = {}
        for node in range(1, count + 1):
            self._add(node)

    def _add(self, node: int) -> None:
        name = f"n{node}"
        self.disks[node] = NodeDisk(self._nodes / name, self._folder / name, self._library)

    def environment(self, node: int) -> dict[str, str]:
        """Returns the environment of a node's next process. A node that joins gets a disk of its own."""
        if node not in self.disks:
            self._add(node)
        return self.disks[node].environment()

    def skew(self, node: int, offset_ms: int) -> None:
        """Moves the clock of the node from now on, until it is set to 0."""
        self.disks[node].set_clock(offset_ms)

    def skewed_readings(self, node: int) -> int:
        """Returns how many times the node's process has read a moved clock so far."""
        return self.disks[node].skewed_readings


class ShimPower:
    """Cuts the power of nodes; implements PowerSwitch. Half of the failures lose everything unsynced, the other half
    leave some of it.
    """

    def __init__(self, subject: Subject, shim: Shim) -> None:
        self._subject = subject
        self._shim = shim

    def cut(self, nodes: list[int], rng: random.Random) -> dict[str, float]:
        """Kills the nodes, undoes the writes that they had not synced, and returns counts of what was lost and kept."""
        struck = [node for node in nodes if self._subject.is_running(node)]
        for blow in [self._subject.aim(node) for node in struck]:
            blow()
        for node in struck:
            while self._subject.is_running(node):
                time.sleep(0.001)
        survive = rng.choice((0.0, 0.5))
        dropped = [self._shim.disks[node].fail(rng, survive) for node in struck]
        return {
            "nodes": len(struck),
            "writes": sum(each.writes for each in dropped),
            "bytes": sum(each.bytes for each in dropped),
            "names": sum(each.names for each in dropped),
            "kept": sum(each.kept for each in dropped),
        }


class Proof(NamedTuple):
    """The result of the proof: a shim that works with this interpreter. `suspicion` says what a real node did wrong
    when it ran on the shim; "" if nothing.
    """

    library: Path
    suspicion: str


class _SuspectNode(Exception):
    """The node failed the proof, not the shim."""


def prepare(folder: Path, owned: Owned) -> Proof:
    """Builds the library and proves that it works. Raises ShimError with the reason if power failures cannot be played
    here."""
    library = build_shim(folder)
    owned.add_directory(folder / "proof")
    _prove_alone(folder / "proof-alone", library)
    processes = Processes(owned)
    suspicion = ""
    try:
        _prove_node(folder / "proof", library, processes)
    except _SuspectNode as error:
        suspicion = f"in the proof before the run, {error}"
    except (LocalError, OSError) as error:
        raise ShimError(f"the node does not run on the shim: {error}") from error
    finally:
        processes.stop_all()
    return Proof(library, suspicion)


_ALONE = """
import os, signal
f = os.open("a", os.O_RDWR | os.O_CREAT)
d = os.open(".", os.O_RDONLY)
os.fsync(d)
os.pwritev(f, [b"synced"], 0)
os.fdatasync(f)
os.pwritev(f, [b"not"], 6)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _prove_alone(place: Path, library: Path) -> None:
    home = place / "home"
    home.mkdir(parents=True)
    disk = NodeDisk(home, place / "shim", library)
    done = subprocess.run(
        [sys.executable, "-S", "-c", _ALONE],
        cwd=home,
        env=dict(os.environ) | disk.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != -signal.SIGKILL:
        raise ShimError(f"the interpreter does not run on the shim: {done.stderr.strip()[-300:]}")
    disk.fail(random.Random(0), 0.0)
    left = (home / "a").read_bytes() if (home / "a").exists() else b"nothing"
    if left != b"synced":
        raise ShimError(f"after a power failure the file holds {left!r} instead of what was synced")


def _prove_node(place: Path, library: Path, processes: Processes) -> None:
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

    nodes = place / "nodes"
    shim = Shim(nodes, place / "shim", library, 1)
    subject = RaftMQSubject(nodes, processes, count=1, environment=shim.environment)
    try:
        subject.start()
        held = asyncio.run(_send_one_and_hold_one(subject, nodes))
        ShimPower(subject, shim).cut([1], _NoSurvivors())
        after = _log_bytes(nodes)
        if body_of(held) in after:
            raise _SuspectNode("a write whose sync was held survived the power failure")
        if body_of("proof-acked") not in after:
            raise _SuspectNode("an acknowledged message was gone after the power failure")
        subject.start_node(1)
        subject.wait_healthy(PROOF_S)
        _check_clock(subject, shim)
    finally:
        subject.stop()


class _NoSurvivors(random.Random):
    def choice(self, options: object) -> float:  # type: ignore[override]
        return 0.0


async def _send_one_and_hold_one(subject: RaftMQSubject, nodes: Path) -> str:
    """Sends one message that is acknowledged and one whose sync is held; returns the id of the latter.

    The held sync may belong to an entry that the leader appended by itself. Then another message is sent.
    """
    client = await subject.open_client()
    await (await client.submit("proof-acked"))
    for attempt in range(HELD_TRIES):
        message_id = f"proof-held-{attempt}"
        held = await _hold_one(subject, client, message_id)
        if held.done():
            raise _SuspectNode("a message was acknowledged while its sync was held")
        if body_of(message_id) in _log_bytes(nodes):
            held.cancel()
            return message_id
        await _in_thread(subject.set_failpoint, 1, "append.fdatasync", "off")
        with contextlib.suppress(SendFailed, SendUnknown):
            await held
    raise _SuspectNode("a message whose sync was held had not been written")


async def _hold_one(subject: RaftMQSubject, client: LogClient, message_id: str) -> asyncio.Future[PlacedMessage]:
    """Sends the message and waits until a failpoint holds a sync; returns the send's future."""
    await _in_thread(subject.set_failpoint, 1, "append.fdatasync", "hold")
    held = await client.submit(message_id)
    deadline = time.monotonic() + PROOF_S
    while not (await _in_thread(subject.failpoint_waiting, 1))["append.fdatasync"]:
        if time.monotonic() > deadline:
            raise _SuspectNode("the log was written and no sync of it followed")
        await asyncio.sleep(0.02)
    return held


async def _in_thread(function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def _log_bytes(nodes: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((nodes / "n1" / "data" / "log").glob("*.seg")))


def _check_clock(subject: RaftMQSubject, shim: Shim) -> None:
    """Checks that a moved clock is read: some of the clock readings that a node makes while it answers status requests
    must be moved. Raises _SuspectNode if none is within PROOF_S.
    """
    before = shim.skewed_readings(1)
    shim.skew(1, 1000)
    deadline = time.monotonic() + PROOF_S
    while shim.skewed_readings(1) == before:
        if time.monotonic() > deadline:
            raise _SuspectNode("the node never read the moved clock")
        subject.states()
        time.sleep(0.05)
    shim.skew(1, 0)
