"""The list of processes and directories that a run owns, written to disk before they are made, so that nothing outlives
a dead run.

There is one file per run in a private folder of the user. The next run reads the files of runs that are dead, and ends
exactly the processes and removes exactly the directories listed there. A pid that belongs to another program by now is
recognized by its start time and left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from raftmq_wire.errors import ExitCode, LocalError

FOLDER_VARIABLE = "RAFTMQ_CHAOS_STATE"
_START_SLACK_S = 0.1
"""Seconds by which two readings of one process's start time may differ."""


class OwnedProcess(msgspec.Struct, frozen=True):
    """A process identified by pid and start time, which together are unique."""

    pid: int
    started: float


class _File(msgspec.Struct):
    run: OwnedProcess
    processes: list[OwnedProcess] = []
    directories: list[str] = []


class Swept(msgspec.Struct, frozen=True):
    """The processes and directories that a sweep removed."""

    processes: list[int]
    directories: list[str]


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the folder that holds the lists of all runs; makes it, private to the user, if it is missing. Raises
    LocalError if it is no directory, or if another user owns it.
    """
    named = (os.environ if environ is None else environ).get(FOLDER_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"raftmq-chaos-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LocalError(
            f"{folder} is not ours",
            "it lists the processes that the next run may end, so it must belong to the user who runs it",
            f"{FOLDER_VARIABLE}=DIR raftmq chaos run …    (with a directory of your own)",
            ExitCode.REFUSED,
        )
    return folder


class Owned:
    """The list of one run, with its file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}.json"
        self._content = _File(_process(os.getpid()))
        self._write()

    def add_directory(self, path: Path) -> None:
        """Lists a directory that is removed if this run dies. Must be called before the directory is made."""
        self._content.directories.append(str(path.absolute()))
        self._write()

    def keep_directory(self, path: Path) -> None:
        """Removes the directory from the list, because it now belongs to the user."""
        self._content.directories = [each for each in self._content.directories if each != str(path.absolute())]
        self._write()

    def add_process(self, pid: int) -> None:
        """Lists a process that is ended if this run dies. A process that is gone already is not listed."""
        alive = [each for each in self._content.processes if _is_alive(each)]
        with contextlib.suppress(psutil.NoSuchProcess):
            alive.append(_process(pid))
        self._content.processes = alive
        self._write()

    def close(self) -> None:
        """Removes the list: everything was cleaned up."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._content))
        fresh.replace(self.path)


def sweep(folder: Path) -> Swept:
    """Ends and removes everything that dead runs left behind, as listed in their files. Damaged files are set aside
    without acting on them."""
    processes: list[int] = []
    directories: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = msgspec.json.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            continue
        except msgspec.MsgspecError:
            path.rename(path.with_suffix(".damaged"))
            continue
        if _is_alive(content.run):
            continue
        processes += [each.pid for each in content.processes if _end(each)]
        for directory in content.directories:
            if Path(directory).is_dir():
                shutil.rmtree(directory, ignore_errors=True)
                directories.append(directory)
        path.unlink(missing_ok=True)
    return Swept(processes, directories)


@contextlib.contextmanager
def owning(folder: Path, tell: Callable[[str], None]) -> Iterator[Owned]:
    """A context that first sweeps what dead runs left. Yields the list of what this run owns, and deletes the list at
    the end of the context, by which the run must have cleaned up.
    """
    state = state_folder()
    swept = sweep(state)
    if swept.processes or swept.directories:
        tell(f"an earlier run was killed: ended {len(swept.processes)} of its nodes, removed {swept.directories}")
    owned = Owned(state)
    try:
        yield owned
    finally:
        owned.close()


def _process(pid: int) -> OwnedProcess:
    return OwnedProcess(pid, psutil.Process(pid).create_time())


def _find(owned: OwnedProcess) -> psutil.Process | None:
    try:
        process = psutil.Process(owned.pid)
        same = abs(process.create_time() - owned.started) < _START_SLACK_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _is_alive(owned: OwnedProcess) -> bool:
    return _find(owned) is not None


def _end(owned: OwnedProcess) -> bool:
    process = _find(owned)
    if process is None:
        return False
    try:
        process.kill()
        process.wait(10)
    except psutil.Error:
        return False
    return True
