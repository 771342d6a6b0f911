"""A registry process as its parent has it: started, asked, ended. pysyncobj is in that process alone."""

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
"""Seconds for which the parent waits beyond the limit that the process has."""


class Child:
    """One process. Event loop only."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._numbers = itertools.count(READY + 1)
        self._waiting: dict[int, asyncio.Future[RegistryReply]] = {READY: asyncio.get_running_loop().create_future()}
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="registry process")

    @classmethod
    async def start(cls, settings: RegistrySettings, log: int, prefix: Sequence[str] = ()) -> Child:
        """Starts a process; its errors go to the file with the descriptor `log`. `prefix` is a command that runs it."""
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
        """True if the process has ended, or talks no more."""
        return self._reading.done()

    def when_over(self, then: Callable[[], object]) -> None:
        """Calls `then` when the process has ended."""
        self._reading.add_done_callback(lambda _: then())

    async def ready(self, limit_s: float) -> None:
        """Returns when it listens. Raises LocalError if it does not in time, or has ended."""
        try:
            outcome = (await asyncio.wait_for(asyncio.shield(self._waiting[READY]), limit_s))[1]
        except TimeoutError:
            outcome = UNKNOWN
        if outcome == UNKNOWN:
            raise LocalError(
                "a registry process did not start", f"exit code {self.process.returncode}", "Read its log file."
            )

    async def apply(self, operation: bytes, limit_s: float) -> RegistryReply:
        """Applies an operation; returns its outcome, which is unknown if the process has ended or does not answer."""
        return await self._ask(limit_s, "apply", operation, int(limit_s * 1000))

    async def read(self, limit_s: float) -> RegistryReply:
        """Returns all records of this replica as the value of the answer."""
        return await self._ask(limit_s, "read")

    async def status(self, limit_s: float) -> RegistryReply:
        """Returns the state of this replica as the value of the answer. It may answer and take no operation."""
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
        """Stops the process, in an orderly way if it ends within `limit_s`; returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), limit_s)
        except TimeoutError:
            self.process.kill()
        code = await self.process.wait()
        # Its last output is in the pipe. Another process may hold the other end open, so the wait is limited.
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
