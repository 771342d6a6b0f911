"""Starts a registry process as a child of this one, sends it requests, and stops it.

pysyncobj runs only in the registry process, not in the parent.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence

from cluster.registry import frames
from cluster.registry.frames import READY, UNKNOWN, RegistryReply, RegistrySettings, frame
from raftmq_wire.errors import LocalError

MODULE = "cluster.registry.process"
GRACE_S = 0.5
"""Seconds for which the parent waits for an answer, beyond the time limit that it gives the process."""


class Child:
    """One registry process, run as a child of this one. Event loop only."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._numbers = itertools.count(READY + 1)
        self._waiting: dict[int, asyncio.Future[RegistryReply]] = {READY: asyncio.get_running_loop().create_future()}
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="registry process")

    @classmethod
    async def start(cls, settings: RegistrySettings, log: int, prefix: Sequence[str] = ()) -> Child:
        """Starts a process and sends it its settings. Its stderr goes to the file with the descriptor `log`. `prefix`
        is put before the command, for a program that runs the process."""
        command = [*prefix, sys.executable, "-m", MODULE]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log
        )
        child = cls(process)
        child._write(settings)
        return child

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self.process.returncode

    @property
    def is_over(self) -> bool:
        """True if the process has ended or its output has closed: it can answer nothing more."""
        return self._reading.done()

    def when_over(self, then: Callable[[], object]) -> None:
        """Calls `then` when `is_over` becomes True."""
        self._reading.add_done_callback(lambda _: then())

    async def ready(self, limit_s: float) -> None:
        """Waits until the process listens. Raises LocalError if it does not within `limit_s` seconds, or has ended."""
        try:
            outcome = (await asyncio.wait_for(asyncio.shield(self._waiting[READY]), limit_s))[1]
        except TimeoutError:
            outcome = UNKNOWN
        if outcome == UNKNOWN:
            raise LocalError(
                "a registry process did not start", f"exit code {self.process.returncode}", "Read its log file."
            )

    async def apply(self, operation: bytes, limit_s: float) -> RegistryReply:
        """Asks the process to apply an operation within `limit_s` seconds. Returns its outcome, which is unknown if the
        process has ended or does not answer."""
        return await self._ask(limit_s, "apply", operation, int(limit_s * 1000))

    async def read(self, limit_s: float) -> RegistryReply:
        """Returns an answer whose value is all records of the process (`Records.dump`). Its outcome is unknown if the
        process has ended or does not answer."""
        return await self._ask(limit_s, "read")

    async def status(self, limit_s: float) -> RegistryReply:
        """Returns an answer whose value is the state of the process (`read_status`). A process may answer this and
        still accept no operation. The outcome is unknown if it has ended or does not answer."""
        return await self._ask(limit_s, "status")

    async def _ask(self, limit_s: float, *words: object) -> RegistryReply:
        number = next(self._numbers)
        waiting: asyncio.Future[RegistryReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            if self._reading.done():
                return number, UNKNOWN, "the process has ended", b""
            self._write([number, *words])
            return await asyncio.wait_for(waiting, limit_s + GRACE_S)
        except TimeoutError:
            return number, UNKNOWN, "the process does not answer", b""
        finally:
            self._waiting.pop(number, None)

    async def close(self, limit_s: float) -> int:
        """Stops the process and returns its exit code. Closes its stdin, and kills it if it has not ended after
        `limit_s` seconds."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), limit_s)
        except TimeoutError:
            self.process.kill()
        code = await self.process.wait()
        # The pipe may still contain the process's last output. Another process may hold the writing end open, so the
        # wait is limited.
        await asyncio.wait([self._reading], timeout=GRACE_S)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        return code

    def _write(self, value: object) -> None:
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(frame(value))

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while (data := await frames.read_frame(self.process.stdout)) is not None:
            reply = frames.read_reply(data)
            waiting = self._waiting.get(reply[0])
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        for number, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_result((number, UNKNOWN, "the process has ended", b""))
