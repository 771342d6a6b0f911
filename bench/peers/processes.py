"""The processes of a system: started in groups of their own, measured, stopped and continued, and always ended.

They end when `end` is called, and when this interpreter exits for any reason that it can notice (`ended_at_exit`). If
the interpreter is killed, the kernel ends them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_GONE_S = 20.0
_all: weakref.WeakSet[Processes] = weakref.WeakSet()
_libc = ctypes.CDLL(None)


class Processes:
    """The processes of one system, by pid. A process is identified by pid and start time, so a reused pid is never
    signalled."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        _all.add(self)

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> int:
        """Starts the command with its output appended to `log`; returns its pid. Call it from the main thread.

        The kernel ends the process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
        """
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                cwd=log.parent,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._children[child.pid] = child
        self._known[child.pid] = psutil.Process(child.pid)
        return child.pid

    @property
    def pids(self) -> list[int]:
        """The pids of the processes that were started here, without killed ones."""
        return list(self._known)

    def ended(self) -> list[int]:
        """Returns the pids of processes that ended by themselves."""
        return [pid for pid, process in self._known.items() if not _is_alive(process)]

    def pause(self, pid: int | None = None) -> None:
        """Sends SIGSTOP to one process, or to all without `pid`; returns when the operating system shows them as
        stopped."""
        some = self._some(pid)
        for process in some:
            process.suspend()
        until = time.monotonic() + _GONE_S
        while any(_is_alive(process) and process.status() != psutil.STATUS_STOPPED for process in some):
            if time.monotonic() > until:
                raise TimeoutError(f"not stopped by SIGSTOP: {[process.pid for process in some]}")
            time.sleep(0.005)

    def resume(self, pid: int | None = None) -> None:
        """Sends SIGCONT to one process, or to all without `pid`."""
        for process in self._some(pid):
            process.resume()

    def kill(self, pid: int) -> None:
        """Sends SIGKILL to one process and returns at once; `reap` waits for its end."""
        self._known[pid].kill()

    def reap(self, pid: int) -> None:
        """Waits until a killed process has ended, and forgets it."""
        _wait_gone([self._known.pop(pid)], self._children.pop(pid, None))

    def end(self) -> None:
        """Sends kill -9 to every remaining process and its descendants; returns when all are gone."""
        doomed = [process for known in self._known.values() for process in _family(known)]
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for pid, process in self._known.items():
            _wait_gone([process], self._children.pop(pid, None))
        _wait_gone(doomed, None)
        self._known.clear()

    def cpu_seconds(self) -> float:
        """Returns the user and system time of all processes so far, with their descendants, including those that ended
        and were waited for."""
        pids = {process.pid for known in self._known.values() for process in _family(known)}
        return sum(_ticks_of(pid) for pid in pids) / TICKS_PER_SECOND

    def memory_bytes(self) -> int:
        """Returns the resident memory of all processes; pages that they share are counted for each."""
        return sum(process.memory_info().rss for process in self._known.values() if _is_alive(process))

    def _some(self, pid: int | None) -> list[psutil.Process]:
        return [process for known, process in self._known.items() if pid in (None, known) and _is_alive(process)]


def ticks(stat: str) -> int:
    """Returns utime + stime + cutime + cstime of a line of /proc/PID/stat (proc(5)); its second field, the name, may
    contain anything."""
    fields = stat.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


@contextlib.contextmanager
def ended_at_exit() -> Iterator[None]:
    """Provides a context in which SIGTERM and SIGHUP raise SystemExit. However the context is left, it then ends the
    processes of all systems."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _exit) for number in signals}
    atexit.register(end_all)
    try:
        yield
    finally:
        end_all()
        atexit.unregister(end_all)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_all() -> None:
    """Ends the processes of every system; an error with one does not stop the others."""
    for processes in list(_all):
        try:
            processes.end()
        except (psutil.Error, TimeoutError) as error:
            print(f"error: {error}", file=sys.stderr)


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when the thread that started it ends (PR_SET_PDEATHSIG)."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)


def _ticks_of(pid: int) -> int:
    try:
        return ticks(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0  # the process has ended in the meantime


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)] if process.is_running() else []
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_gone(processes: Sequence[psutil.Process], child: subprocess.Popen[bytes] | None) -> None:
    if child is not None:
        child.wait(_GONE_S)
    until = time.monotonic() + _GONE_S
    while any(_is_alive(process) for process in processes):
        if time.monotonic() > until:
            raise TimeoutError(f"not gone after kill -9: {[process.pid for process in processes]}")
        time.sleep(0.005)
