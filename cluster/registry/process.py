"""Runs the child process of the registry, which contains pysyncobj: `python -m cluster.registry.process`, started by
its parent (cluster/registry/child.py).

pysyncobj has a thread of its own; this loop reads the parent's frames and answers them. Every operation is answered
within its time limit, even if pysyncobj never answers, and at most IN_FLIGHT_MAX operations are in flight. The process
ends with its parent. It also ends when its disk or the thread of pysyncobj fails; its parent then starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cluster.registry import frames, pysyncobj_check
from cluster.registry.frames import FAIL, OK, READY, UNKNOWN, RegistrySettings, RegistryStatus, frame
from cluster.registry.records import Records, RegistryAnswer
from cluster.registry.store import Store
from cluster.runtime.peer_frames import WireError
from raftlog.errors import OutOfSpaceError, RaftLogError
from raftlog.kept_errors import bare
from raftlog.storage.files.fs import OsFileSystem
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.registry.hardened import HardenedRaft

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 8
TICK_S = 0.05
FAILURES_MAX = 20
"""The number of ticks that fail in a row after which the process ends."""


class RaftThread:
    """Runs pysyncobj on a thread of its own, with the directory of the process."""

    def __init__(self, settings: RegistrySettings, records: Records, on_failure: Callable[[str], None]) -> None:
        """`on_failure` is called once, on the thread of pysyncobj, when this thread ends because of a failure."""
        self._settings = settings
        self._records = records
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._error: Exception | None = None
        self._raft: HardenedRaft | None = None
        self._store: Store | None = None
        self._thread = threading.Thread(target=self._run, name="registry-raft", daemon=True)

    def start(self) -> None:
        """Opens the directory and listens (blocking). Raises RaftLogError if the directory cannot be used, LocalError
        if pysyncobj is not the reviewed version or the address cannot be bound."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends the thread, which then closes the directory. Waits at most two seconds for a thread that hangs."""
        self._stopping.set()
        self._thread.join(2.0)

    def propose(self, operation: bytes, done: Callable[[RegistryAnswer | None, int], None]) -> None:
        """Proposes an operation. `done` gets its outcome on the thread of pysyncobj, but may never be called."""
        if self._raft is not None:
            self._raft.propose(operation, done)

    def status(self) -> RegistryStatus:
        """Returns the state of the replica. Its figures may be of different moments, because the thread goes on
        during this call."""
        raft, store = self._raft, self._store
        assert raft is not None
        assert store is not None
        journal = store.journal
        return RegistryStatus(
            term=raft.raftCurrentTerm,
            leader=raft.leader_number(),
            applied=raft.raftLastApplied,
            committed=raft.raftCommitIndex,
            entries=len(journal.entries),
            is_full=journal.is_full,
            syncs=store.syncs,
        )

    def _run(self) -> None:
        try:
            self._open()
        except Exception as error:  # noqa: BLE001  # the caller of start() raises it
            self._error = bare(error)
            self._started.set()
            return
        self._started.set()
        failures = 0
        while not self._stopping.is_set():
            try:
                assert self._raft is not None
                self._raft.tick(TICK_S)
                failures = 0
            except OutOfSpaceError as error:  # nothing was confirmed, and the caller's time limit ends the operation
                logger.warning("%s", error)
                time.sleep(TICK_S)
            except RaftLogError as error:
                self._on_failure(str(error))
                return
            except Exception as error:
                failures += 1
                logger.exception("a turn of the registry failed")
                if failures == FAILURES_MAX:
                    self._on_failure(f"{FAILURES_MAX} turns failed, the last one with {error!r}")
                    return
                time.sleep(TICK_S)
        assert self._store is not None
        self._store.close()

    def _open(self) -> None:
        pysyncobj_check.check_installed()
        from pysyncobj.syncobj import SyncObjException

        from cluster.registry.hardened import HardenedRaft, RegistryPeers

        settings = self._settings
        directory = Path(settings.directory)
        self._store = Store(OsFileSystem(), directory, settings.cluster, settings.node, self._records)
        peers = RegistryPeers(settings.addresses, settings.node, settings.bind)
        try:
            self._raft = HardenedRaft(peers, settings.password, self._store, self._records)
        except SyncObjException as error:
            raise LocalError(
                f"registry node {settings.node} cannot listen at {settings.bind}",
                "another process has the port, or the address is not this machine's",
                f"ss -ltnp | grep {settings.bind.rpartition(':')[2]}",
                ExitCode.REFUSED,
            ) from error


class Server:
    """Answers the parent's frames. Event loop only."""

    def __init__(self, settings: RegistrySettings, write: Callable[[bytes], None], ended: asyncio.Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._records = Records(settings.cluster)
        self._write = write
        self._ended = ended
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self.raft = RaftThread(settings, self._records, self._on_failure)

    def _on_failure(self, why: str) -> None:
        def end() -> None:
            if not self._ended.done():
                self._ended.set_result(why)

        self._loop.call_soon_threadsafe(end)

    def answer(self, request: list[Any]) -> None:
        """Answers a request of the parent, at once or within the request's time limit."""
        number, verb = request[0], request[1]
        if verb == "apply":
            self._apply(number, request[2], request[3])
        else:
            value = self._records.dump() if verb == "read" else msgspec.msgpack.encode(self.raft.status())
            self._reply(number, OK, "", value)

    def _apply(self, number: int, operation: bytes, limit_ms: int) -> None:
        known = self._records.known(operation)
        if known is not None:
            self._reply(number, FAIL if known[0] else OK, *known)
        elif len(self._waiting) >= IN_FLIGHT_MAX or number in self._waiting:
            self._reply(number, FAIL, f"{IN_FLIGHT_MAX} operations are in flight", b"")
        else:
            self._waiting[number] = self._loop.call_later(limit_ms / 1000, self._settle, number, UNKNOWN, "no answer")

            def done(answer: RegistryAnswer | None, reason: int) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._on_done, number, answer, reason)

            self.raft.propose(operation, done)

    def _on_done(self, number: int, answer: RegistryAnswer | None, reason: int) -> None:
        from cluster.registry.hardened import REFUSED

        if answer is not None and reason == 0:
            self._settle(number, FAIL if answer[0] else OK, *answer)
        else:
            self._settle(number, FAIL if reason in REFUSED else UNKNOWN, f"pysyncobj says {reason}")

    def _settle(self, number: int, outcome: str, error: str, value: bytes = b"") -> None:
        timer = self._waiting.pop(number, None)
        if timer is not None:
            timer.cancel()
            self._reply(number, outcome, error, value)

    def _reply(self, number: int, outcome: str, error: str, value: bytes) -> None:
        self._write(frame((number, outcome, error, value)))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers frames until the parent closes the stream. Raises LocalError, RaftLogError or WireError when the process
    cannot continue."""
    first = await frames.read_frame(reader)
    if first is None:
        return
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = Server(frames.read_settings(first), writer.write, ended)
    await asyncio.to_thread(server.raft.start)
    writer.write(frame((READY, OK, "", b"")))
    reading = asyncio.create_task(_read(server, reader))
    either: list[asyncio.Future[Any]] = [reading, ended]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        reading.cancel()
        raise LocalError(
            "the registry process cannot go on", ended.result(), "Nothing: its parent starts it again.", ExitCode.FAILED
        )
    await asyncio.to_thread(server.raft.stop)
    reading.result()


async def _read(server: Server, reader: asyncio.StreamReader) -> None:
    while (data := await frames.read_frame(reader)) is not None:
        server.answer(frames.read_request(data))


async def _run() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    await serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def main() -> int:
    """Runs the process; returns its exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        asyncio.run(_run())
    except (LocalError, RaftLogError, WireError) as error:
        logger.error("%s", error)
        return int(ExitCode.REFUSED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
